"""Everything that is tested, and the kits that the tests share."""
