//! `plimsoll predict` on Hugging Face transformers: text generation, mixtures of experts, and callbacks of a Trainer.

use plimsoll_needs::needs;

use crate::program::{stderr, stdout};
use crate::torch::{Torch, answer};

const GENERATES: &str = "
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=0, pad_token_id=2)
model, assistant = (LlamaForCausalLM(config).cuda().eval() for _ in range(2))
prompt = torch.randint(3, 100, (1, 8)).cuda()
for name, options in dict(
    greedy=dict(), sampled=dict(do_sample=True, top_p=0.9), beams=dict(num_beams=3),
    sampled_beams=dict(num_beams=2, do_sample=True), several=dict(num_beams=4, num_return_sequences=4),
    assisted=dict(assistant_model=assistant), speculative=dict(assistant_model=assistant, do_sample=True),
    lookup=dict(prompt_lookup_num_tokens=3),
).items():
    tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, **options)
    print('length', name, tokens.size(1), flush=True)
";

#[needs(pytorch, transformers)]
#[test]
fn text_is_generated_to_its_full_length_under_every_strategy() {
    let torch = Torch::new("generates", GENERATES);
    let output = torch.predict(&["--json", "--timeout", "5m"], &[]);
    let report = answer(&output, 0);
    for name in
        ["greedy", "sampled", "beams", "sampled_beams", "several", "assisted", "speculative", "lookup"]
    {
        assert!(stderr(&output).contains(&format!("length {name} 32\n")), "{name}: {}", stderr(&output));
    }
    assert_eq!(report["exact"], false, "its end depends on values: {report}");
}

const EXPERTS: &str = "
import torch
from transformers import MixtralConfig, MixtralForCausalLM
config = MixtralConfig(vocab_size=100, hidden_size=64, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, experts_implementation='eager')
model = MixtralForCausalLM(config).cuda()
linear, rows = torch.nn.functional.linear, []
def counted(x, weight, *rest):
    if tuple(weight.shape) == (512, 64):
        rows.append(x.size(0))
    return linear(x, weight, *rest)
torch.nn.functional.linear = counted
ids = torch.randint(100, (4, 128)).cuda()
model(input_ids=ids, labels=ids).loss.backward()
print('tokens', rows, flush=True)
";

#[needs(pytorch, transformers)]
#[test]
fn every_expert_of_a_mixture_gets_tokens() {
    let torch = Torch::new("experts", EXPERTS);
    let output = torch.predict(&["--json", "--whole"], &[]);
    answer(&output, 0);
    // 512 tokens with two experts each, on four experts.
    let shares = [256; 4];
    assert!(stderr(&output).contains(&format!("tokens {shares:?}")), "{}", stderr(&output));
}

/// A Trainer with a callback that keeps the weights each time the Trainer logs, or prints the loss.
const LOGS: &str = "
import sys, torch
from transformers import Trainer, TrainerCallback, TrainingArguments
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1024, 1024)
    def forward(self, x, labels=None):
        y = self.linear(x)
        return {'loss': (y - labels).square().mean(), 'logits': y}
class Keep(TrainerCallback):
    def __init__(self):
        self.kept = []
    def on_log(self, args, state, control, model=None, **kwargs):
        self.kept.append(model.linear.weight.detach().clone())
class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        print(logs)
rows = [{'x': torch.ones(1024), 'labels': torch.ones(1024)}] * 6400
args = TrainingArguments('out', per_device_train_batch_size=16, num_train_epochs=1, logging_steps=100, report_to=[])
callback = Keep() if sys.argv[1] == 'keeps' else Print()
Trainer(Net(), args, train_dataset=rows, callbacks=[callback]).train()
";

#[needs(pytorch, transformers)]
#[test]
fn a_callback_that_keeps_memory_and_did_not_run_is_named() {
    let torch = Torch::new("logs", LOGS);
    let text = stdout(&torch.predict(&[], &["keeps"]));
    let plain = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(plain.contains("(train.py:14 was not run: --whole)"), "{text}");
    assert!(
        plain.contains("train.py:14-15 (on_log, every 100 steps) did not run in the first 3 steps"),
        "{text}"
    );
    let text = stdout(&torch.predict(&[], &["prints"]));
    assert!(!text.contains("not run"), "{text}");
}
