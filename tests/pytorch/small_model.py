"""A small model of random weights with a tokenizer of its own, a data set, and a configuration of LLaMA-Factory's that trains an adapter of
it: `small_model.py FOLDER`. Nothing is downloaded."""
import json
import os
import random
import sys

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["<unk>", "<s>", "</s>", "<pad>"] + [f"w{i}" for i in range(900)]
CONFIGURATION = """\
model_name_or_path: {folder}/model
stage: sft
do_train: true
finetuning_type: lora
lora_target: q_proj,v_proj
dataset_dir: {folder}/data
dataset: words
template: empty
cutoff_len: 256
output_dir: {folder}/out
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
max_steps: 8
save_steps: 4
logging_steps: 4
report_to: none
"""


def make_model(folder):
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>").save_pretrained(folder)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
                                 bos_token_id=1, eos_token_id=2, pad_token_id=3)).save_pretrained(folder)


def make_data(folder):
    chance = random.Random(1)

    def text(most):
        return " ".join(f"w{chance.randrange(900)}" for _ in range(chance.randrange(5, most)))

    os.makedirs(folder)
    with open(f"{folder}/words.json", "w", encoding="utf-8") as file:
        json.dump([{"instruction": text(80), "input": "", "output": text(120)} for _ in range(64)], file)
    with open(f"{folder}/dataset_info.json", "w", encoding="utf-8") as file:
        json.dump({"words": {"file_name": "words.json"}}, file)


if __name__ == "__main__":
    make_model(f"{sys.argv[1]}/model")
    make_data(f"{sys.argv[1]}/data")
    with open(f"{sys.argv[1]}/train.yaml", "w", encoding="utf-8") as out:
        out.write(CONFIGURATION.format(folder=sys.argv[1]))
