"""How nests of the loop IR lie in rows and lanes."""
