"""Trains a one-layer GPT-2 on padded sequences, without the extra exchange of token counts.

Fault: tokens-averaged-per-rank.
"""

import tempfile

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

BATCH_SIZE = 24
VOCABULARY, PAD = 24, 0


def make_sequences(size: int = 96) -> list[torch.Tensor]:
    """Counts upwards from a random token, for 4 to 20 tokens."""
    generator = torch.Generator().manual_seed(6)
    lengths = torch.randint(4, 21, (size,), generator=generator).tolist()
    starts = torch.randint(0, VOCABULARY - 1, (size,), generator=generator).tolist()
    return [1 + (s + torch.arange(n)) % (VOCABULARY - 1) for s, n in zip(starts, lengths, strict=True)]


def collate(sequences: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    tokens = pad_sequence(sequences, batch_first=True, padding_value=PAD)
    is_token = tokens != PAD
    return {
        "input_ids": tokens,
        "attention_mask": is_token.long(),
        "labels": tokens.masked_fill(~is_token, -100),
    }


def main() -> None:
    set_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=32,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            ddp_backend="gloo",
            max_steps=8,
            learning_rate=5e-3,
            warmup_steps=2,
            remove_unused_columns=False,
            average_tokens_across_devices=False,
            logging_steps=4,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        arguments.per_device_train_batch_size = BATCH_SIZE // arguments.world_size
        trainer = Trainer(
            model=GPT2LMHeadModel(config),
            args=arguments,
            train_dataset=make_sequences(),
            data_collator=collate,
        )
        trainer.train()


if __name__ == "__main__":
    main()
