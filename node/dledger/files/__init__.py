"""Files behind the smallest contract that can crash: real and in memory."""
