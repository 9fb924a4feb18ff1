"""Files: what others wrote is checked before it is believed, and what is written is there whole or not at all."""
