"""What a model needs of the machine, and the sizes that the engine works with, before it is loaded."""
