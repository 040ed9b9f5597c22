"""What a person reads of a view: sentences, the picture of one head, the page with all of them, the terminal."""
