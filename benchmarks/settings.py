"""What both sides' training steps have in common."""

OPTIMIZER = {"rate": 1e-3, "betas": (0.9, 0.95), "epsilon": 1e-8, "decay": 0.1, "clip": 1.0}
EPS = 1e-6  # of all norms


def model_settings(shape):
    """A model as Evenkeel's configurations name it."""
    return {"vocab_size": shape["vocab"], "num_layers": shape["layers"], "width": shape["width"],
            "feed_forward_width": shape["feed_forward"], "max_seq_len": shape["tokens"], "norm_eps": EPS,
            "attention": {"num_heads": shape["heads"], "num_kv_heads": shape["kv_heads"],
                          "head_dim": shape["head_dim"]}}
