"""What others reach over HTTP. Importing this needs no extra; the parts that do say so when they are used."""
