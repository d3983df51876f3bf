"""An engine without a model, torch not needed: the contract tests' partner."""
