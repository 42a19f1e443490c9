"""Texts on which lower precisions lose most, by kind: their states lie far from those of ordinary sentences."""

SPECIAL = ("<s> </s> <mask> <pad> <unk>", "[CLS] [SEP] [MASK] [PAD] [UNK]")

HARD: dict[str, tuple[str, ...]] = {
    "empty": ("", " ", "\n\t"),
    "one character": (*"xyaiZ1?.,-", "\u00e9", "\u6f22", "\U0001f600"),
    "special tokens": (*SPECIAL, *(f"{names} " * 20 for names in SPECIAL), *" ".join(SPECIAL).split(), "[SEP] [SEP]"),
    "one word of many pieces": (
        "pneumonoultramicroscopicsilicovolcanoconiosis",
        "Donaudampfschifffahrtsgesellschaft",
        "supercalifragilisticexpialidocious" * 3,
    ),
    "repeated": ("y" * 99, "y" * 300, "y y " * 150, "a" * 80, "ha" * 60, "the " * 200, "no no no no", "1 " * 250),
    "other scripts and emoji": (
        "\U0001f600" * 3,
        "\U0001f389" * 50,
        "\u6211\u559c\u6b22\u5403\u82f9\u679c\u3002",
        "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc785\ub2c8\ub2e4",
        "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a \u0434\u0435\u043b\u0430?",
        "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
        "\u200b\u200b",
    ),
    "punctuation": ("...", "!" * 8, "?!" * 4, "-" * 100, "." * 200, "***", "()[]{}<>", "// \\\\ ##", "$%&" * 30),
    "short": (
        *("cat", "dog", "hello", "OK", "yes", "red car", "good morning", "thank you", "to be", "machine learning"),
        *("New York", "the", "and", "of", "heart attack", "stop!", "why?", "kitten", "feline animal"),
    ),
    "digits": ("42", "3.14159", "1234567890", "2024-01-01", "0 1 2 3 4 5 6 7 8 9", "+49 170 1234567", "0" * 90),
    "long": (
        "A man is playing a guitar on the street while people pass by. " * 40,
        "WHY ARE YOU SHOUTING " * 80,
        "lorem ipsum dolor sit amet consectetur " * 60,
        " ".join(map(str, range(200))),
    ),
    "sentences": (
        "A man is playing a guitar on the street.",
        "Shares fell sharply.",
        "The quick brown fox jumps over the lazy dog.",
        "def f(x): return x**2",
        "How do I reset my password?",
        "http://example.com/a?b=c",
        "Stocks rallied on Tuesday as investors digested the inflation report.",
    ),
}
