//! Compares models with those of `transformers`: names, shapes, and three training steps from the same initial values.
//! `fixtures/make_models.py` makes `fixtures/models.json`.

use plimsoll::models::{
    Bert, BertConfig, BertForMaskedLm, BertInputs, Gpt2, Gpt2Config, Llama, LlamaConfig, RopeScaling, Vit,
    VitConfig, layers_to_recompute,
};
use plimsoll::nn::{Module, Scope};
use plimsoll::optim::{AdamW, AdamWOptions, Optimizer};
use plimsoll::{CpuConfig, DType, Device, Result, SimConfig, Tensor, autocast};

use crate::recorded_steps::same_names;
use crate::recorded_steps::transformers::{
    self, bert, filled, recorded, small_gpt2, small_images, small_llama, small_vit, tokens,
};

fn gpt2(scope: &Scope) -> Gpt2 {
    Gpt2::new(scope, small_gpt2()).unwrap()
}

#[test]
fn recorded_models_have_the_names_and_learn_the_steps_of_transformers() {
    for program in transformers::programs() {
        (program.run)(&Device::cpu()).unwrap().check(program.name);
    }
}

#[test]
fn a_dynamic_llama_reads_a_sequence_by_the_longest_before_it() {
    let scaling = RopeScaling::Dynamic { factor: 2.0, max_position_embeddings: 8 };
    let config = LlamaConfig { rope_scaling: Some(scaling), ..small_llama() };
    let model = Llama::new(&Scope::new(&Device::cpu(), 1), config).unwrap();
    filled(&model);
    let expected: Vec<(usize, f64)> = serde_json::from_value(recorded("dynamic lengths")).unwrap();
    for (length, expected) in expected {
        let [x, y] = [0, 1].map(|i| tokens(&Device::cpu(), i).narrow(1, 0, length).unwrap());
        let loss = f64::from(model.loss(&x, &y).unwrap().item::<f32>().unwrap());
        assert!((loss - expected).abs() <= 1e-5, "{length} tokens: {loss}, PyTorch's {expected}");
    }
}

#[test]
fn a_scaling_that_cannot_be_is_refused() {
    let config =
        LlamaConfig { rope_scaling: Some(RopeScaling::Linear { factor: 0.0 }), ..LlamaConfig::default() };
    let error =
        Llama::new(&Scope::new(&Device::sim(SimConfig::new(1 << 40)), 1), config).unwrap_err().to_string();
    assert_eq!(error, "rope_scaling: factor is 0; it must be 1 or more");
}

#[test]
fn published_sizes_have_the_names_and_shapes_of_pytorchs() {
    let published = recorded("published");
    let scope = || Scope::new(&Device::sim(SimConfig::new(1 << 40)), 1);
    for (name, config) in
        [("vit_b_16", VitConfig::b_16()), ("vit_b_32", VitConfig::b_32()), ("vit_l_16", VitConfig::l_16())]
    {
        same_names(name, &Vit::new(&scope(), config).unwrap(), &published[name]);
    }
    let bert = BertForMaskedLm::new(&scope(), BertConfig::base()).unwrap();
    same_names("bert", &bert, &published["bert"]);
    let bert = Bert::new(&scope(), BertConfig::base()).unwrap();
    same_names("bert with pooler", &bert, &published["bert with pooler"]);
}

#[test]
fn padding_changes_nothing_that_is_not_padding() {
    let device = Device::cpu();
    let model = bert(&Scope::new(&device, 1));
    let first = |tokens: &[i64], mask: Option<&[i64]>| {
        let shape = [1, tokens.len()];
        let ids = Tensor::from_slice(tokens, &shape, &device).unwrap();
        let mask = mask.map(|mask| Tensor::from_slice(mask, &shape, &device).unwrap());
        let inputs = BertInputs { input_ids: &ids, attention_mask: mask.as_ref(), token_type_ids: None };
        model.logits(inputs).unwrap().narrow(1, 0, 3).unwrap().to_vec::<f32>().unwrap()
    };
    let alone = first(&[5, 9, 2], None);
    let padded = first(&[5, 9, 2, 0, 0], Some(&[1, 1, 1, 0, 0]));
    alone.iter().zip(&padded).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} {b}"));
}

#[test]
fn images_and_inputs_of_other_shapes_are_refused() {
    let device = Device::cpu();
    let scope = Scope::new(&device, 1);
    let small = VitConfig {
        image_size: 8,
        patch_size: 4,
        num_layers: 1,
        num_heads: 1,
        hidden_dim: 8,
        mlp_dim: 8,
        ..VitConfig::b_16()
    };
    let error =
        Vit::new(&scope.at("a"), VitConfig { patch_size: 3, ..small.clone() }).unwrap_err().to_string();
    assert_eq!(error, "vit: an image of 8 is not divisible into patches of 3");
    let vit = Vit::new(&scope.at("b"), small).unwrap();
    let error = vit.forward(&Tensor::zeros(&[1, 3, 8, 9], &device).unwrap()).unwrap_err().to_string();
    assert_eq!(error, "vit: images of 8 × 9: this model needs 8 × 8");
    let bert = bert(&scope.at("c"));
    let ids = tokens(&device, 0);
    let mask = Tensor::ones(&[2, 11], &device).unwrap();
    let inputs = BertInputs { input_ids: &ids, attention_mask: Some(&mask), token_type_ids: None };
    let error = bert.logits(inputs).unwrap_err().to_string();
    assert_eq!(error, "bert: attention_mask [2, 11] for tokens [2, 12]: needs the same shape");
    let error = bert.bert().pooled(&bert.bert().hidden(&ids).unwrap()).unwrap_err().to_string();
    assert_eq!(error, "bert: this model was made without a pooler: make it with `Bert::new`");
}

#[test]
fn logits_and_loss_agree() {
    let device = Device::cpu();
    let model = gpt2(&Scope::new(&device, 3));
    let (x, y) = (tokens(&device, 0), tokens(&device, 1));
    let logits = model.forward(&x).unwrap();
    assert_eq!(logits.shape(), [2, 12, 61]);
    let whole = logits.reshape(&[24, 61]).unwrap().cross_entropy(y.reshape(&[24]).unwrap()).unwrap();
    let chunked = model.loss(&x, &y).unwrap();
    assert!((whole.item::<f32>().unwrap() - chunked.item::<f32>().unwrap()).abs() < 1e-5);
}

#[test]
fn published_sizes_have_the_published_numbers_of_parameters() {
    let device = Device::sim(SimConfig::new(1 << 40));
    let count = |config: Gpt2Config| -> usize {
        let model = Gpt2::new(&Scope::new(&device, 1), config).unwrap();
        model.parameters().iter().map(Tensor::numel).sum()
    };
    assert_eq!(count(Gpt2Config::small()), 124_439_808);
    assert_eq!(count(Gpt2Config::medium()), 354_823_168);
    assert_eq!(count(Gpt2Config::large()), 774_030_080);
    assert_eq!(count(Gpt2Config::xl()), 1_557_611_200);
}

#[test]
fn checkpointed_blocks_have_the_same_gradients() {
    let gradients = |gradient_checkpointing: bool| -> Vec<Vec<f32>> {
        let device = Device::cpu_with(CpuConfig::default());
        let config = gpt2(&Scope::new(&device, 1)).config().clone();
        device.manual_seed(5);
        let model =
            Gpt2::new(&Scope::new(&device, 1), Gpt2Config { dropout: 0.1, gradient_checkpointing, ..config })
                .unwrap();
        model.loss(&tokens(&device, 0), &tokens(&device, 1)).unwrap().backward().unwrap();
        model.parameters().iter().map(|p| p.grad().unwrap().to_vec::<f32>().unwrap()).collect()
    };
    assert_eq!(gradients(false), gradients(true));
}

/// The types in which a model trains.
#[derive(Clone, Copy, Debug)]
enum Form {
    F32,
    Autocast,
    /// Parameters and stream in 16 bits.
    Model,
}

fn prepared(model: &mut impl Module, form: Form) {
    if matches!(form, Form::Model) {
        model.bfloat16().unwrap();
    }
}

/// The loss and all gradients, converted to `f32`.
fn gradients_of(model: &impl Module, loss: Vec<f32>) -> Vec<Vec<f32>> {
    let grads = model
        .parameters()
        .into_iter()
        .map(|parameter| parameter.grad().unwrap().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap());
    std::iter::once(loss).chain(grads).collect()
}

fn backward_of(form: Form, loss: impl Fn() -> Result<Tensor>) -> Vec<f32> {
    let loss = match form {
        Form::Autocast => autocast::autocast(DType::BF16, loss),
        _ => loss(),
    };
    let loss = loss.unwrap();
    loss.backward().unwrap();
    loss.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap()
}

#[test]
fn products_that_are_computed_again_give_the_same_bits() {
    // A device of its own: other tests draw random numbers of the process's.
    let device = Device::cpu_with(CpuConfig::default());
    let (x, y) = (tokens(&device, 0), tokens(&device, 1));
    for form in [Form::F32, Form::Autocast, Form::Model] {
        let of_gpt2 = |recompute_mlp: usize, dropout: f64| {
            device.manual_seed(5);
            let config = gpt2(&Scope::new(&device, 1)).config().clone();
            let config = Gpt2Config { recompute_mlp, dropout, ..config };
            let mut model = Gpt2::new(&Scope::new(&device, 1), config).unwrap();
            prepared(&mut model, form);
            gradients_of(&model, backward_of(form, || model.loss(&x, &y)))
        };
        for dropout in [0.0, 0.1] {
            let kept = of_gpt2(0, dropout);
            assert_eq!(kept, of_gpt2(1, dropout), "{form:?}");
            assert_eq!(kept, of_gpt2(2, dropout), "{form:?}");
        }
        let of_llama = |recompute_mlp: usize| {
            let config = LlamaConfig { recompute_mlp, ..small_llama() };
            let mut model = Llama::new(&Scope::new(&device, 1), config).unwrap();
            prepared(&mut model, form);
            gradients_of(&model, backward_of(form, || model.loss(&x, &y)))
        };
        assert_eq!(of_llama(0), of_llama(2), "{form:?}");
        let of_vit = |recompute_mlp: usize| {
            let config = VitConfig { recompute_mlp, ..small_vit() };
            let mut model = Vit::new(&Scope::new(&device, 1), config).unwrap();
            filled(&model); // Its head starts with zeros, so nothing would have a gradient.
            prepared(&mut model, form);
            let (images, classes) = small_images(&device);
            let images =
                if matches!(form, Form::Model) { images.to_dtype(DType::BF16).unwrap() } else { images };
            gradients_of(&model, backward_of(form, || model.loss(&images, &classes)))
        };
        assert_eq!(of_vit(0), of_vit(2), "{form:?}");
    }
}

/// GPT-2 124M on an H200 in 16 bits: the bytes reserved after three steps.
fn reserved_by_gpt2(config: &Gpt2Config, batch: usize, device: &Device) -> Result<u64> {
    let mut model = Gpt2::new(&Scope::new(device, 1), Gpt2Config { dropout: 0.0, ..config.clone() })?;
    model.bfloat16()?;
    let mut adamw = AdamW::new(model.parameters(), AdamWOptions::default()).with_master_weights();
    let x = Tensor::empty(&[batch, 1024], DType::I64, device)?;
    for _ in 0..3 {
        let loss = model.loss(&x, &x)?;
        adamw.zero_grad();
        loss.backward()?;
        adamw.step()?;
    }
    Ok(device.max_memory_reserved())
}

#[test]
fn gpt2_in_16_bits_trains_in_less_than_half_of_compiled_pytorchs_memory() {
    let h200 = || SimConfig::like("H200").unwrap();
    let small = Gpt2Config::small();
    let of_8 = reserved_by_gpt2(&small, 8, &Device::sim(h200())).unwrap();
    assert!(of_8 <= 4_000_000_000, "{of_8}");
    // The number of layers that recompute their first product is the smallest that fits these limits.
    for (config, batch, limit, most) in
        [(small, 64, 14_500_000_000, 3), (Gpt2Config::xl(), 8, 38_000_000_000, 20)]
    {
        let train = |recompute_mlp: usize, device: &Device| {
            reserved_by_gpt2(&Gpt2Config { recompute_mlp, ..config.clone() }, batch, device).map(drop)
        };
        let layers = layers_to_recompute(config.n_layer, limit, &h200(), train).unwrap().unwrap();
        assert!(layers <= most, "{layers} layers for {limit} bytes");
    }
}

/// The bytes reserved after three steps of AdamW on a 16-bit model with 32-bit master copies, on an H200 with expandable
/// segments.
fn reserved_in_16_bits<M: Module>(
    make: impl Fn(&Scope) -> Result<M>,
    inputs: impl Fn(&Device) -> Result<[Tensor; 2]>,
    loss: impl Fn(&M, &[Tensor; 2]) -> Result<Tensor>,
) -> u64 {
    let device = Device::sim(SimConfig::like("H200").unwrap());
    device.set_allocator_settings("expandable_segments:True").unwrap();
    let mut model = make(&Scope::new(&device, 1)).unwrap();
    model.bfloat16().unwrap();
    let mut adamw = AdamW::new(model.parameters(), AdamWOptions::default()).with_master_weights();
    let inputs = inputs(&device).unwrap();
    for _ in 0..3 {
        adamw.zero_grad();
        loss(&model, &inputs).unwrap().backward().unwrap();
        adamw.step().unwrap();
    }
    device.max_memory_reserved()
}

#[test]
fn llama_and_vit_in_16_bits_train_in_less_than_two_thirds_of_compiled_pytorchs_memory() {
    let llama = reserved_in_16_bits(
        |scope| Llama::new(scope, LlamaConfig::llama_350m()),
        |device| {
            let tokens = Tensor::empty(&[8, 2048], DType::I64, device)?;
            Ok([tokens.clone(), tokens])
        },
        |model, [x, y]| model.loss(x, y),
    );
    assert!(llama <= 15_000_000_000, "{llama}");
    let vit = reserved_in_16_bits(
        |scope| Vit::new(scope, VitConfig::b_16()),
        |device| {
            let images = Tensor::empty(&[128, 224, 224, 3], DType::BF16, device)?.permute(&[0, 3, 1, 2])?;
            Ok([images, Tensor::empty(&[128], DType::I64, device)?])
        },
        |model, [x, y]| model.loss(x, y),
    );
    assert!(vit <= 6_500_000_000, "{vit}");
}

#[test]
fn the_sums_of_a_residual_stream_belong_to_the_model() {
    let device = Device::sim(SimConfig::like("H200").unwrap());
    let model = Gpt2::new(&Scope::new(&device, 1), small_gpt2()).unwrap();
    let x = tokens(&device, 0);
    for amp in [None, Some(DType::BF16)] {
        device.reset_peak_memory_stats();
        let loss = autocast::autocast(amp, || model.loss(&x, &x)).unwrap();
        let owners = device.owners_at_peak();
        loss.backward().unwrap();
        let has = |label: &str| owners.iter().any(|owner| owner.label == label);
        assert!(has("transformer.h.1.ln_1") && !has("add"), "{amp:?}: {owners:?}");
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let scope = Scope::new(&Device::cpu(), 1);
    let error = Gpt2::new(&scope, Gpt2Config { n_head: 5, ..Gpt2Config::small() }).unwrap_err().to_string();
    assert_eq!(error, "gpt2: a width of 768 is not divisible by 5 heads");
    let model = gpt2(&Scope::new(&Device::cpu(), 1));
    let long = Tensor::full(&[1, 17], 0.0, DType::I64, &Device::cpu()).unwrap();
    assert_eq!(
        model.forward(&long).unwrap_err().to_string(),
        "gpt2: a sequence has 17 tokens, but the model has 16 positions"
    );
    let unknown = Tensor::full(&[1, 2], 61.0, DType::I64, &Device::cpu()).unwrap();
    assert!(model.forward(&unknown).unwrap_err().to_string().contains("61"));
}

/// Compares the peaks of three steps of AdamW on a simulated H200 with PyTorch's for the same programs on the same device.
#[test]
fn training_takes_less_than_two_thirds_of_pytorchs_memory() {
    let peak = |amp: Option<DType>,
                batch: usize,
                length: usize,
                parameters: Vec<Tensor>,
                loss: &dyn Fn(&Tensor) -> Result<Tensor>| {
        let device = parameters[0].device().clone();
        let mut adamw = AdamW::new(parameters, AdamWOptions::default());
        for _ in 0..3 {
            let x = Tensor::empty(&[batch, length], DType::I64, &device).unwrap();
            let loss = autocast::autocast(amp, || loss(&x)).unwrap();
            adamw.zero_grad();
            loss.backward().unwrap();
            adamw.step().unwrap();
        }
        device.max_memory_allocated() as f64 / 1e9
    };
    let h200 = || Device::sim(SimConfig::like("H200").unwrap());
    for (amp, pytorch) in [(None, 15.35), (Some(DType::BF16), 13.28)] {
        let model =
            Gpt2::new(&Scope::new(&h200(), 1), Gpt2Config { dropout: 0.0, ..Gpt2Config::small() }).unwrap();
        let ours = peak(amp, 8, 1024, model.parameters(), &|x| model.loss(x, x));
        assert!(ours < 0.4 * pytorch, "{ours} GB, PyTorch {pytorch} GB");
        let config = Gpt2Config { gradient_checkpointing: true, ..model.config().clone() };
        drop(model);
        let model = Gpt2::new(&Scope::new(&h200(), 1), config).unwrap();
        let checkpointed = peak(amp, 8, 1024, model.parameters(), &|x| model.loss(x, x));
        assert!(checkpointed < 0.65 * ours, "{checkpointed} GB checkpointed, {ours} GB without");
    }
    let model = Llama::new(&Scope::new(&h200(), 1), LlamaConfig::llama_350m()).unwrap();
    let ours = peak(Some(DType::BF16), 4, 2048, model.parameters(), &|x| model.loss(x, x));
    assert!(ours < 0.6 * 21.33, "{ours} GB, PyTorch 21.33 GB");
}
