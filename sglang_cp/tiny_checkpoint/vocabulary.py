"""The vocabulary: token ids 0 to 255 are the bytes, special tokens follow, and unused ids fill it up."""

EOS_TOKEN, PAD_TOKEN, BOS_TOKEN = "<|endoftext|>", "<|pad|>", "<|begin|>"
SPECIAL_TOKENS = (EOS_TOKEN, PAD_TOKEN, BOS_TOKEN, "<|system|>", "<|user|>", "<|assistant|>")
EOS_ID, PAD_ID, BOS_ID = (256 + SPECIAL_TOKENS.index(token) for token in (EOS_TOKEN, PAD_TOKEN, BOS_TOKEN))
# Padded to a multiple of 64, as SGLang's vocabulary-parallel embedding has it.
VOCAB_SIZE = 320

# Only these are ever generated: printable ASCII. Greedy text is readable, valid UTF-8, and never ends early.
GENERATED_IDS = (ord("\n"), *range(0x20, 0x7F))
