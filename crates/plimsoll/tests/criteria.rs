//! Losses as structs, against literal results of PyTorch; parameters as one vector; data sets one after the other.

use std::sync::Arc;

use plimsoll::data::{
    ConcatDataset, DataError, DataLoader, Dataset, Digits, Sampler, Shapes, SubsetRandomSampler,
};
use plimsoll::nn::{
    CTCLoss, CosineEmbeddingLoss, GaussianNLLLoss, HingeEmbeddingLoss, Linear, MarginRankingLoss, Module,
    MultiMarginLoss, PoissonNLLLoss, Scope, SoftMarginLoss, TripletMarginLoss, parameters_to_vector,
    vector_to_parameters,
};
use plimsoll::{Device, Result, Tensor};

fn rows(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, &[2, values.len() / 2], &Device::cpu()).unwrap()
}

fn near(what: &str, loss: Result<Tensor>, expected: f32) {
    let loss = loss.unwrap().item::<f32>().unwrap();
    assert!((loss - expected).abs() < 1e-5, "{what}: {loss}, PyTorch's {expected}");
}

#[test]
fn losses_are_pytorchs() {
    let (a, b) = (rows(&[1.0, 2.0, 3.0, 0.5, -1.0, 2.0]), rows(&[1.5, 2.0, 2.0, 0.0, -1.0, 1.0]));
    let c = rows(&[0.0, 2.5, 3.0, 1.0, 1.0, 2.0]);
    let signs = rows(&[1.0, -1.0, 1.0, -1.0, 1.0, -1.0]);
    let triplet = TripletMarginLoss { margin: 2.0, ..TripletMarginLoss::default() };
    near("triplet", triplet.forward(&a, &b, &c), 1.528_241_9);
    let cosine = CosineEmbeddingLoss { margin: 0.25, ..CosineEmbeddingLoss::default() };
    near("cosine", cosine.forward(&a, &b, &rows(&[1.0, -1.0]).flatten(0, 1).unwrap()), 0.357_909_3);
    let rank = MarginRankingLoss { margin: 0.5, ..MarginRankingLoss::default() };
    near("rank", rank.forward(&a, &b, &rows(&[1.0, -1.0, 1.0, -1.0, 1.0, 1.0])), 0.5);
    let gauss = GaussianNLLLoss { full: true, ..GaussianNLLLoss::default() };
    near("gauss", gauss.forward(&a, &b, &rows(&[1.0, 0.5, 2.0, 0.1, 1.0, 3.0])), 1.117_218_5);
    near("hinge", HingeEmbeddingLoss::default().forward(&a, &signs), 0.583_333_3);
    near("soft margin", SoftMarginLoss::default().forward(&a, &signs), 1.150_507_3);
    let classes = Tensor::from_slice(&[2i64, 0], &[2], &Device::cpu()).unwrap();
    near("multi margin", MultiMarginLoss::default().forward(&a, &classes), 0.416_666_66);
    let poisson = PoissonNLLLoss { full: true, ..PoissonNLLLoss::default() };
    near("poisson", poisson.forward(&a, &rows(&[1.0, 2.0, 3.0, 0.0, 4.0, 2.0])), 5.303_915);
    let waves: Vec<f32> = (0..30).map(|i| (i as f32).sin()).collect();
    let log_probs = Tensor::from_slice(&waves, &[5, 2, 3], &Device::cpu()).unwrap().log_softmax(2).unwrap();
    let targets = Tensor::from_slice(&[1i64, 2, 1, 1], &[2, 2], &Device::cpu()).unwrap();
    near("ctc", CTCLoss::default().forward(&log_probs, &targets, &[5, 4], &[2, 2]), 1.027_419_2);
}

#[test]
fn parameters_are_one_vector_and_come_back() {
    let device = Device::cpu();
    let model = Linear::new(&Scope::new(&device, 1), 3, 2).unwrap();
    let vector = parameters_to_vector(&model.parameters()).unwrap();
    assert!(vector.requires_grad());
    vector.square().unwrap().sum().unwrap().backward().unwrap();
    let expected = (&vector.detach().narrow(0, 0, 6).unwrap() * 2.0).unwrap();
    let got = model.weight().grad().unwrap().ravel().unwrap();
    assert_eq!(got.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
    let counted = Tensor::arange(8, &device).unwrap();
    vector_to_parameters(&counted, &model.parameters()).unwrap();
    assert_eq!(model.weight().to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(model.bias().unwrap().to_vec::<f32>().unwrap(), [6.0, 7.0]);
    assert!(model.weight().requires_grad() && model.weight().is_leaf());
    let error = vector_to_parameters(counted.narrow(0, 0, 7).unwrap(), &model.parameters()).unwrap_err();
    assert_eq!(error.to_string(), "vector_to_parameters: [7] for 8 elements: needs [8]");
}

#[test]
fn data_sets_follow_each_other_and_a_sampler_keeps_to_its_samples() {
    let (first, second) = (Arc::new(Digits::new(1, 3)), Arc::new(Digits::new(2, 4)));
    let both = Arc::new(ConcatDataset::new(vec![first.clone(), second.clone()]).unwrap());
    assert_eq!((both.len(), both.fields()), (7, first.fields()));
    let labels = |data: Arc<dyn Dataset>| -> Vec<i64> {
        let loader = DataLoader::new(data, 1).unwrap();
        loader
            .epoch(0)
            .map(|batch| batch.unwrap().array("labels").unwrap().as_slice::<i64>().unwrap()[0])
            .collect()
    };
    assert_eq!(labels(both.clone()), [labels(first), labels(second)].concat());
    let other = Arc::new(Shapes { len: 1, fields: Vec::new() });
    let error = ConcatDataset::new(vec![both, other]).map(|_| ()).unwrap_err();
    assert!(matches!(error, DataError::OtherFields { part: 1, .. }), "{error}");
    assert!(ConcatDataset::new(Vec::new()).unwrap().is_empty());

    let sampler = SubsetRandomSampler::new((0..50).map(|i| 2 * i).collect(), 7);
    let order = |epoch| sampler.order(epoch).unwrap().to_vec();
    assert_ne!(order(0), order(1));
    assert_eq!(order(3), order(3));
    let mut sorted = order(0);
    sorted.sort_unstable();
    assert_eq!(sorted, (0..50).map(|i| 2 * i).collect::<Vec<_>>());
}
