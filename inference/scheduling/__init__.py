"""Which tokens the next step computes, and whose."""
