"""Networks: ResNets, encoders with their heads, batch norm for stacked views, stored weights."""
