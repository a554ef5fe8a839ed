"""PyTorch in: modules become graphs by torch.export, tensors come and go without copies."""
