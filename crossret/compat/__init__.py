"""Other projects' functions under their own names and signatures, computed by crossret: a user changes one import."""
