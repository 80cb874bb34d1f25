"""A thin translator in front of another OpenAI endpoint that runs this model, such as vLLM's.

It keeps no state and balances no load.
"""
