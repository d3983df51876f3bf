"""A model spread over several processes, of one machine or of several, by torch.distributed."""
