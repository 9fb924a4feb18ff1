"""A figure on real pictures: drawings and photographs of Debian's packages with the sentences that people wrote."""
