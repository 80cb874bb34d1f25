"""The model's chat template for programs that read Jinja: the published one, plus tools.

The published template takes tools from a key of the system message and ignores those that programs
pass beside the messages, and it has no form for calls and their results.  This one lays all of them
out as ``prompt.segment.render_chat`` does.
"""

from __future__ import annotations

from typing import Final

CHAT_TEMPLATE: Final = """\
{%- macro offered(tools) -%}
<|tool|>[{% for tool in tools %}\
{{ (tool.function if tool.function is defined else tool) | tojson }}\
{{ ', ' if not loop.last }}{% endfor %}]<|/tool|>
{%- endmacro -%}
{%- macro words(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content -%}
{%- for part in content -%}{{ part.text if part.text is defined else '' }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- macro called(calls) -%}
<|tool_call|>[{% for call in calls %}{"name": {{ call.function.name | tojson }}, "arguments": \
{{ call.function.arguments if call.function.arguments is string else \
call.function.arguments | tojson }}}{{ ', ' if not loop.last }}{% endfor %}]<|/tool_call|>
{%- endmacro -%}
{%- if tools and messages[0].role != 'system' -%}<|system|>{{ offered(tools) }}<|end|>{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}<|tool_response|>{{ words(message.content) }}
{%- else -%}<|{{ message.role }}|>{{ words(message.content) }}
{%- endif -%}
{%- if loop.first and message.role == 'system' and message.tools -%}
<|tool|>{{ message.tools }}<|/tool|>
{%- elif loop.first and message.role == 'system' and tools -%}{{ offered(tools) }}
{%- endif -%}
{%- if message.tool_calls -%}{{ called(message.tool_calls) }}{%- endif -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""
