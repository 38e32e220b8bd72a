//! Ten small training scripts as users write them in PyTorch, ported line by line. Each must lower its loss.

use plimsoll::Reduction;
use plimsoll::optim::{Adam, AdamOptions, Optimizer, Sgd, SgdOptions};
use plimsoll::{DType, Device, Result, Tensor, no_grad};

use crate::on_device::seeded;

fn parameter(shape: &[usize], device: &Device) -> Tensor {
    let std = 1.0 / (*shape.last().unwrap() as f64).sqrt();
    let tensor = Tensor::randn(shape, device).unwrap().mul_scalar(std).unwrap();
    tensor.requires_grad_(true).unwrap()
}

fn adam(parameters: &[&Tensor], lr: f64) -> Adam {
    let parameters = parameters.iter().map(|&parameter| parameter.clone()).collect();
    Adam::new(parameters, AdamOptions { lr, ..AdamOptions::default() })
}

/// Takes steps, and returns the mean of the first five losses and of the last five.
fn train(optimizer: &mut dyn Optimizer, steps: usize, loss: &dyn Fn() -> Result<Tensor>) -> (f32, f32) {
    let mut losses = Vec::new();
    for _ in 0..steps {
        optimizer.zero_grad();
        let loss = loss().unwrap();
        loss.backward().unwrap();
        optimizer.step().unwrap();
        losses.push(loss.item::<f32>().unwrap());
    }
    let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
    (mean(&losses[..5]), mean(&losses[steps - 5..]))
}

fn assert_learns((first, last): (f32, f32)) {
    assert!(last.is_finite() && last < 0.8 * first, "from {first} to {last}");
}

#[test]
fn a_generator_and_a_discriminator_train_against_each_other() {
    let device = seeded();
    let (g1, g2) = (parameter(&[16, 4], &device), parameter(&[2, 16], &device));
    let (d1, d2) = (parameter(&[16, 2], &device), parameter(&[1, 16], &device));
    let generate = |n: usize| Tensor::randn(&[n, 4], &device)?.linear(&g1, None)?.relu()?.linear(&g2, None);
    let judge = |x: &Tensor| x.linear(&d1, None)?.leaky_relu(0.2)?.linear(&d2, None);
    let (mut of_g, mut of_d) = (adam(&[&g1, &g2], 1e-2), adam(&[&d1, &d2], 1e-2));
    let bce = |x: &Tensor, target: f64| -> Result<Tensor> {
        x.binary_cross_entropy_with_logits(&x.detach().full_like(target)?, None, None, Reduction::Mean)
    };
    let mut means = Vec::new();
    for _ in 0..60 {
        let real = Tensor::randn(&[32, 2], &device).unwrap().mul_scalar(0.1).unwrap().add_scalar(2).unwrap();
        let fake = generate(32).unwrap();
        of_d.zero_grad();
        let loss =
            bce(&judge(&real).unwrap(), 1.0).unwrap().add(bce(&judge(&fake.detach()).unwrap(), 0.0).unwrap());
        loss.unwrap().backward().unwrap();
        of_d.step().unwrap();
        of_g.zero_grad();
        bce(&judge(&fake).unwrap(), 1.0).unwrap().backward().unwrap();
        of_g.step().unwrap();
        means.push(fake.detach().mean().unwrap().item::<f32>().unwrap());
    }
    assert!(
        means[59] > means[0] + 0.3,
        "the generator moves towards the data: {} to {}",
        means[0],
        means[59]
    );
}

#[test]
fn a_variational_autoencoder_learns() {
    let device = seeded();
    let x = Tensor::rand(&[64, 8], &device).unwrap().ge_scalar(0.5).unwrap().float().unwrap();
    let [enc, mu, logvar, dec] = [[16, 8], [2, 16], [2, 16], [8, 2]].map(|shape| parameter(&shape, &device));
    let loss = || -> Result<Tensor> {
        let h = x.linear(&enc, None)?.relu()?;
        let (mu, logvar) = (h.linear(&mu, None)?, h.linear(&logvar, None)?);
        let z = mu.add(&logvar.mul_scalar(0.5)?.exp()?.mul(&mu.detach().randn_like()?)?)?;
        let recon = z.linear(&dec, None)?.binary_cross_entropy_with_logits(&x, None, None, Reduction::Sum)?;
        let kl =
            logvar.add_scalar(1)?.sub(&mu.pow_scalar(2)?)?.sub(&logvar.exp()?)?.sum()?.mul_scalar(-0.5)?;
        recon.add(&kl)?.div_scalar(64)
    };
    let (first, last) = train(&mut adam(&[&enc, &mu, &logvar, &dec], 2e-2), 120, &loss);
    assert!(last < first - 0.3, "from {first} to {last}");
}

#[test]
fn a_siamese_network_learns_distances() {
    let device = seeded();
    let w = parameter(&[4, 8], &device);
    let [a, p, n] = [(); 3].map(|()| Tensor::randn(&[32, 8], &device).unwrap());
    let p = a.add(p.mul_scalar(0.5).unwrap()).unwrap();
    let embed = |x: &Tensor| x.linear(&w, None)?.normalize(-1);
    let loss = || embed(&a)?.triplet_margin_loss(&embed(&p)?, &embed(&n)?, 1.0, Reduction::Mean);
    assert_learns(train(&mut adam(&[&w], 2e-2), 80, &loss));
}

#[test]
fn a_sequence_to_sequence_model_learns_to_copy() {
    let device = seeded();
    let (vocab, hidden) = (8, 16);
    let tokens = Tensor::randint(1, vocab as i64, &[16, 5], &device).unwrap();
    let embed = parameter(&[vocab, hidden], &device);
    let cells = [(); 2].map(|()| parameter(&[2 * hidden, 2 * hidden], &device));
    let head = parameter(&[vocab, hidden], &device);
    // A minimal gated unit: a gate and a candidate from the input and the state.
    let step = |cell: &Tensor, x: &Tensor, h: &Tensor| -> Result<Tensor> {
        let both = Tensor::cat(&[x, h], 1)?.linear(cell, None)?.chunk(2, 1)?;
        let gate = both[0].sigmoid()?;
        h.mul(&gate)?.add(&both[1].tanh()?.mul(&gate.affine(-1.0, 1.0)?)?)
    };
    let loss = || -> Result<Tensor> {
        let mut h = Tensor::zeros(&[16, hidden], &device)?;
        for t in 0..5 {
            h = step(&cells[0], &tokens.select(1, t)?.embedding(&embed, None)?, &h)?;
        }
        let mut previous = Tensor::zeros(&[16], &device)?.long()?;
        let mut losses = Vec::new();
        for t in 0..5 {
            h = step(&cells[1], &previous.embedding(&embed, None)?, &h)?;
            previous = tokens.select(1, t)?.contiguous()?; // teacher forcing
            losses.push(h.linear(&head, None)?.cross_entropy(&previous)?);
        }
        Tensor::stack(&losses.iter().collect::<Vec<_>>(), 0)?.mean()
    };
    assert_learns(train(&mut adam(&[&embed, &cells[0], &cells[1], &head], 2e-2), 60, &loss));
}

#[test]
fn a_policy_gradient_finds_the_better_arm() {
    let device = seeded();
    let logits = Tensor::zeros(&[3], &device).unwrap().requires_grad_(true).unwrap();
    let mut optimizer = adam(&[&logits], 0.1);
    let rewards = Tensor::from_slice(&[0.0f32, 1.0, 0.2], &[3], &device).unwrap();
    for _ in 0..60 {
        let (actions, old) = no_grad(|| -> Result<_> {
            let probabilities = logits.softmax(-1)?;
            let actions = probabilities.multinomial(64, true)?;
            let old = probabilities.log()?.index(&[Some(&actions)])?;
            Ok((actions, old))
        })
        .unwrap();
        let reward = rewards.index(&[Some(&actions)]).unwrap();
        let advantage = reward
            .sub(reward.mean().unwrap())
            .unwrap()
            .div(reward.std(1.0).unwrap().add_scalar(1e-8).unwrap())
            .unwrap();
        // PPO's clipped objective.
        let ratio = logits
            .log_softmax(-1)
            .unwrap()
            .index(&[Some(&actions)])
            .unwrap()
            .sub(&old)
            .unwrap()
            .exp()
            .unwrap();
        let clipped = ratio.clamp(0.8, 1.2).unwrap().mul(&advantage).unwrap();
        let loss = ratio.mul(&advantage).unwrap().minimum(&clipped).unwrap().mean().unwrap().neg().unwrap();
        optimizer.zero_grad();
        loss.backward().unwrap();
        optimizer.step().unwrap();
    }
    let probabilities = logits.softmax(-1).unwrap().to_vec::<f32>().unwrap();
    assert!(probabilities[1] > 0.8, "{probabilities:?}");
}

#[test]
fn a_contrastive_model_of_two_kinds_learns_pairs() {
    let device = seeded();
    let (images, texts) =
        (Tensor::randn(&[16, 12], &device).unwrap(), Tensor::randn(&[16, 6], &device).unwrap());
    let (wi, wt) = (parameter(&[8, 12], &device), parameter(&[8, 6], &device));
    let scale =
        Tensor::full(&[], (1.0f64 / 0.07).ln(), DType::F32, &device).unwrap().requires_grad_(true).unwrap();
    let labels = Tensor::arange(16, &device).unwrap();
    let loss = || -> Result<Tensor> {
        let (i, t) = (images.linear(&wi, None)?.normalize(-1)?, texts.linear(&wt, None)?.normalize(-1)?);
        let logits = i.matmul(&t.t()?)?.mul(&scale.exp()?)?;
        logits.cross_entropy(&labels)?.add(&logits.t()?.cross_entropy(&labels)?)?.div_scalar(2)
    };
    let found = train(&mut adam(&[&wi, &wt, &scale], 2e-2), 80, &loss);
    no_grad(|| scale.clamp_(0.0, 100f64.ln())).unwrap();
    assert_learns(found);
}

#[test]
fn a_student_learns_from_its_teacher_and_a_mean_of_it_follows() {
    let device = seeded();
    let x = Tensor::randn(&[64, 8], &device).unwrap();
    let (teacher, student) = (parameter(&[4, 8], &device), parameter(&[4, 8], &device));
    let mean = student.detach().copy().unwrap();
    let temperature = 2.0;
    let soft = no_grad(|| x.linear(&teacher, None)?.div_scalar(temperature)?.softmax(-1)).unwrap();
    let loss = || {
        let log = x.linear(&student, None)?.div_scalar(temperature)?.log_softmax(-1)?;
        no_grad(|| mean.mul_scalar_(0.99).and_then(|()| mean.add_scaled_(&student, 0.01)))?;
        log.kl_div(&soft, false, Reduction::Sum)?.div_scalar(64)?.mul_scalar(temperature * temperature)
    };
    assert_learns(train(&mut adam(&[&student], 2e-2), 80, &loss));
    assert_ne!(mean.to_vec::<f32>().unwrap(), student.to_vec::<f32>().unwrap());
}

#[test]
fn a_mixture_of_experts_routes_its_tokens() {
    let device = seeded();
    let (x, y) = (Tensor::randn(&[48, 8], &device).unwrap(), Tensor::randn(&[48, 8], &device).unwrap());
    let router = parameter(&[4, 8], &device);
    let experts: Vec<Tensor> = (0..4).map(|_| parameter(&[8, 8], &device)).collect();
    let loss = || -> Result<Tensor> {
        let gates = x.linear(&router, None)?.softmax(-1)?;
        let (weights, chosen) = gates.topk(2, -1, true, true)?;
        let weights = weights.div(&weights.sum_keepdim(&[-1])?)?;
        let mut out = x.zeros_like()?;
        for (i, expert) in experts.iter().enumerate() {
            let places = chosen.eq_scalar(i as i64)?.nonzero()?;
            let (token, slot) = (places.select(1, 0)?.contiguous()?, places.select(1, 1)?.contiguous()?);
            let weight = weights.index(&[Some(&token), Some(&slot)])?.unsqueeze(-1)?;
            out =
                out.index_add(0, &token, &x.index_select(0, &token)?.linear(expert, None)?.mul(&weight)?)?;
        }
        let load = chosen.one_hot(Some(4))?.float()?.mean_dims(&[0, 1])?;
        let balance = load.mul(&gates.mean_dims(&[0])?)?.sum()?.mul_scalar(4)?;
        out.mse_loss(&y)?.add(&balance.mul_scalar(0.01)?)
    };
    let mut all: Vec<&Tensor> = experts.iter().collect();
    all.push(&router);
    assert_learns(train(&mut adam(&all, 2e-2), 80, &loss));
}

#[test]
fn a_diffusion_model_learns_to_find_the_noise() {
    let device = seeded();
    let (steps, width) = (50, 16);
    let alphas =
        Tensor::linspace(1e-4, 0.05, steps, &device).unwrap().affine(-1.0, 1.0).unwrap().cumprod(0).unwrap();
    let x0 = Tensor::full(&[64, 2], 1.5, DType::F32, &device).unwrap();
    let (w1, w2) = (parameter(&[64, 2 + width], &device), parameter(&[2, 64], &device));
    let b1 = Tensor::zeros(&[64], &device).unwrap().requires_grad_(true).unwrap();
    let embed = |t: &Tensor| -> Result<Tensor> {
        let half = width / 2;
        let rates =
            Tensor::arange(half, &device)?.float()?.affine(-(1e4f64.ln()) / half as f64, 0.0)?.exp()?;
        let angles = t.float()?.unsqueeze(1)?.mul(&rates)?;
        Tensor::cat(&[&angles.sin()?, &angles.cos()?], 1)
    };
    let loss = || -> Result<Tensor> {
        let t = Tensor::randint(0, steps as i64, &[64], &device)?;
        let noise = x0.randn_like()?;
        let alpha = alphas.gather(0, &t)?.unsqueeze(1)?;
        let xt = alpha.sqrt()?.mul(&x0)?.add(&alpha.affine(-1.0, 1.0)?.sqrt()?.mul(&noise)?)?;
        let found = Tensor::cat(&[&xt, &embed(&t)?], 1)?.linear(&w1, Some(&b1))?.silu()?.linear(&w2, None)?;
        found.mse_loss(&noise)
    };
    assert_learns(train(&mut adam(&[&w1, &b1, &w2], 1e-2), 150, &loss));
}

#[test]
fn a_matrix_is_factorised() {
    let device = seeded();
    let (users, items) = (parameter(&[20, 4], &device), parameter(&[30, 4], &device));
    let bias = Tensor::zeros(&[30], &device).unwrap().requires_grad_(true).unwrap();
    let (u, i) =
        (Tensor::randint(0, 20, &[200], &device).unwrap(), Tensor::randint(0, 30, &[200], &device).unwrap());
    let ratings = Tensor::randint(1, 6, &[200], &device).unwrap().float().unwrap();
    let loss = || -> Result<Tensor> {
        let (a, b) = (u.embedding(&users, None)?, i.embedding(&items, None)?);
        let score = a.mul(&b)?.sum_dims(&[1])?.add(&bias.index_select(0, &i)?)?;
        score.mse_loss(&ratings)
    };
    let options =
        SgdOptions { lr: 0.5, momentum: 0.9, weight_decay: 1e-4, nesterov: true, ..SgdOptions::default() };
    let mut sgd = Sgd::new(vec![users.clone(), items.clone(), bias.clone()], options);
    assert_learns(train(&mut sgd, 80, &loss));
}
