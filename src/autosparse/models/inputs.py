"""What the built-in networks read."""

# The shape of one sample: an image, or the ids of a sentence's tokens.
INPUT_SHAPES: dict[str, tuple[int, ...]] = {
    "mobilenet_v1": (3, 224, 224),
    "resnet18_cifar": (3, 32, 32),
    "resnet20": (3, 32, 32),
    "resnet32": (3, 32, 32),
    "resnet50": (3, 224, 224),
    "small_conv": (1, 28, 28),
    "small_transformer": (1, 28, 28),
    "transformer": (32,),
}
# Networks that read token ids, and how many tensors of them: a source and a target sentence.
TOKEN_TENSORS = {"transformer": 2}
