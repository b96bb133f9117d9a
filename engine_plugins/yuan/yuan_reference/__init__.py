"""Plain PyTorch reference of Yuan2.0, small checkpoints in every real layout, and a training recipe.

Independent of the vLLM plugin beside it and of vLLM: it needs torch, numpy and safetensors (the tokenizer also sentencepiece).
The mathematics is written from a description of the architecture, in its shortest form and not its fastest, so that it can be
read beside that description and be what the plugin is measured against.
"""
