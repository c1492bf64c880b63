"""Hugging Face Trainer, LoRA, gradient checkpointing, checkpoints on disk: an ordinary program, started with `cudamempool run -- python`."""
import os
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class RandomText(torch.utils.data.Dataset):
    """Sequences of different lengths, as packed batches are not."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 1000, (64 + 16 * (index % 9),))
        return {"input_ids": tokens, "labels": tokens.clone()}


def main():
    model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4))
    model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, per_device_train_batch_size=1, gradient_accumulation_steps=4, max_steps=12, logging_steps=4,
                                      save_steps=6, gradient_checkpointing=True, report_to=[])
        trainer = Trainer(model=model, args=arguments, train_dataset=RandomText())
        trainer.train()
        print("written:", *sorted(os.listdir(folder)))
    if torch.cuda.is_available():
        print(torch.cuda.memory_summary(abbreviated=True))


if __name__ == "__main__":
    main()
