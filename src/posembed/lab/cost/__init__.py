"""What a position encoding costs: parameters, time, memory, and how they grow with length."""
