"""Put-on-plate: the literature's protocol (25 objects, splits for vision, semantics and execution) with primitive stand-ins, or with one's own assets."""
