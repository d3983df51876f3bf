"""Tests of `inference/thoughts`."""
