"""The mixers by family: in each module one function a mixer, and the lines of its table MIXERS. Importing them is light."""
