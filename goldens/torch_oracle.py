"""Runs an original-layout folder in transformers, f32 on the CPU with eager attention, and records the named sites."""
import torch
import transformers

torch.set_num_threads(1)  # one order of summation: the same bytes every time
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def load(folder, **text_changes):
    """The folder's model in f32. `text_changes` overrides settings of its text config."""
    config = transformers.AutoConfig.from_pretrained(folder)
    for key, value in text_changes.items():
        setattr(config.text_config, key, value)
    model, info = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    for trouble in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[trouble], f"{folder}: {trouble}: {info[trouble]}"
    return model.eval()


def record(model, ids):
    """All sites of one prompt: {name: numpy array [rows, ...]}, `logits` after the soft cap."""
    text = model.model.language_model
    sites, hooks = {}, []

    def keep(name, value):
        sites[name] = value.detach().clone().squeeze(0)

    def on(module, name, pick=lambda output: output):
        hooks.append(module.register_forward_hook(lambda _m, _i, output: keep(name, pick(output))))

    def keep_route(index):
        def hook(_module, _inputs, output):
            _probabilities, weights, ids = output
            keep(f"layer.{index}.router_weights", weights)
            keep(f"layer.{index}.router_ids", ids)
        return hook

    on(text.embed_tokens, "embed")
    on(text.norm, "final_norm")
    for index, layer in enumerate(text.layers):
        on(layer.self_attn, f"layer.{index}.attention", lambda output: output[0])
        on(layer, f"layer.{index}.hidden")
        if getattr(layer, "enable_moe_block", False):
            hooks.append(layer.router.register_forward_hook(keep_route(index)))
    project = getattr(text, "project_per_layer_inputs", None)
    if project is not None and text.hidden_size_per_layer_input:
        def project_and_keep(*args):
            combined = project(*args)
            keep("per_layer_inputs", combined.flatten(-2))
            return combined
        text.project_per_layer_inputs = project_and_keep
    with torch.no_grad():
        keep("logits", model(input_ids=ids[None], use_cache=False).logits)
    for hook in hooks:
        hook.remove()
    if "per_layer_inputs" in sites:
        del text.project_per_layer_inputs
    return {name: value.numpy() for name, value in sites.items()}
