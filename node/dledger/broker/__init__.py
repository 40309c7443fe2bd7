"""What committed entries mean: topics, queues and deliveries."""
