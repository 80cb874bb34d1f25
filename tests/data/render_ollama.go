// Renders an Ollama template with values shaped as Ollama's: tools and arguments print as JSON.
// Standard input: {"system": ..., "messages": [...], "tools": [...]}; argument: the template's file.
package main

import (
	"encoding/json"
	"os"
	"text/template"
)

type object map[string]any

func (o *object) String() string {
	text, _ := json.Marshal(o)
	return string(text)
}

type tool struct {
	Function object
}

type call struct {
	Function struct {
		Name      string
		Arguments object
	}
}

type message struct {
	Role, Content string
	ToolCalls     []call `json:"tool_calls"`
}

type values struct {
	System   string
	Messages []message
	Tools    []tool
}

func main() {
	text, _ := os.ReadFile(os.Args[1])
	var given values
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		panic(err)
	}
	parsed := template.Must(template.New("").Parse(string(text)))
	if err := parsed.Execute(os.Stdout, given); err != nil {
		panic(err)
	}
}
