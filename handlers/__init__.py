"""The HTTP side of Parley: translate, authorise, frame; it knows no tensor."""
