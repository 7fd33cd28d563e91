"""The configuration of a model that `evenkeel export --remote-code` wrote.

config.json carries under "evenkeel" the settings of the model as Evenkeel has them (`evenkeel train
--print-config-table`, section model). The usual names of sizes are taken from there.
"""

from transformers import PretrainedConfig


class EvenkeelConfig(PretrainedConfig):
    model_type = "evenkeel"

    def __init__(self, evenkeel=None, **kwargs):
        self.evenkeel = evenkeel or {}
        sizes = self.evenkeel
        attention = sizes.get("attention", {})
        named = {
            "vocab_size": sizes.get("vocab_size"),
            "hidden_size": sizes.get("width"),
            "intermediate_size": sizes.get("feed_forward_width"),
            "num_hidden_layers": sizes.get("num_layers"),
            "max_position_embeddings": sizes.get("max_seq_len"),
            "num_attention_heads": attention.get("num_heads"),
            "num_key_value_heads": attention.get("num_kv_heads"),
            "head_dim": attention.get("head_dim"),
        }
        for name, value in named.items():
            kwargs.pop(name, None)
            setattr(self, name, value)
        # Tied embeddings are one tensor in the model itself: there are no two to be tied.
        kwargs["tie_word_embeddings"] = False
        kwargs["use_cache"] = False
        super().__init__(**kwargs)
