"""Turn other tools' evals into suites: one module a format; `imported` holds what they share."""
