"""The OpenAI API over HTTP: one bundle, many clients, the engine in a child process."""
