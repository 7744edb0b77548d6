"""Many runs: the comparisons that vary one axis and hold everything else fixed."""
