"""`attnscope compare MODEL --to atlas`: one model beside the real models of its kind."""
