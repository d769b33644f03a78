"""Programs to start from: ``tinsmith examples`` lists them, ``tinsmith examples mnist`` runs one.

- Images: ``mnist.py``, ``beautiful_mnist.py`` (convolutional networks on digits), ``resnet.py`` (training and published
  weights), ``finetune.py`` (weights from PyTorch).
- Text: ``decoder.py`` (a small language model), ``language_model.py`` (GPT-2 and Llama from files), ``lstm_text.py``,
  ``gpt_distributed.py`` (a GPT that many processes train).
- Generative: ``dcgan.py``, ``diffusion.py``.
"""
