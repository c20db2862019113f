"""What the machine is: environment, GPU and the places of files."""
