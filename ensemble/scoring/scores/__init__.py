"""Every score, declared by `@score`; a file holds scores that are about one thing."""
