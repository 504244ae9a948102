"""What a person sees of a run: a live panel on a terminal, plain lines in a pipe, questions when somebody is asked."""
