//! From steps to launches: what is done between two barriers of the thread team.
//!
//! Two rules. Products of the same input stand together, so that it is quantized once and one barrier serves
//! all. Steps that handle each row by itself run one after another on the thread that owns the row.

use plan::{Op, Plan, Rows, Slice, Step, Value, WeightId};

/// What a team of threads does between two barriers (some have barriers inside).
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Launch {
    /// Steps that handle each row by itself, in order.
    ByRow { rows: Rows, steps: Vec<Step> },
    /// Products of one input.
    Linear { x: Slice, products: Vec<(WeightId, Value)>, is_exact: bool },
    /// Attention of one layer.
    Attention(Step),
    /// The experts of one layer.
    Experts(Step),
}

impl Launch {
    /// The values read.
    pub fn reads(&self) -> Vec<Value> {
        match self {
            Launch::ByRow { steps, .. } => steps.iter().flat_map(|step| step.op.reads()).collect(),
            Launch::Linear { x, .. } => vec![x.value],
            Launch::Attention(step) | Launch::Experts(step) => step.op.reads(),
        }
    }

    /// The values written.
    pub fn writes(&self) -> Vec<Value> {
        match self {
            Launch::ByRow { steps, .. } => steps.iter().flat_map(|step| step.op.writes()).collect(),
            Launch::Linear { products, .. } => products.iter().map(|(_, out)| *out).collect(),
            Launch::Attention(step) | Launch::Experts(step) => step.op.writes(),
        }
    }
}

/// The launches of a plan. With `fuse` false every step is a launch of its own.
pub(crate) fn fuse(plan: &Plan, fuse: bool) -> Vec<Launch> {
    let mut launches: Vec<Launch> = vec![];
    // Where the products of an input are, so that later ones join the first.
    let mut products_of: Vec<(Slice, bool, usize)> = vec![];
    for step in &plan.steps {
        match step.op {
            Op::Linear { x, weight, out } => {
                let is_exact = feeds_router(plan, out);
                let place = products_of.iter().find(|(slice, exact, _)| fuse && *slice == x && *exact == is_exact);
                match place {
                    // The input was written before the first product of it, and a product reads nothing else.
                    Some(&(_, _, at)) => match &mut launches[at] {
                        Launch::Linear { products, .. } => products.push((weight, out)),
                        _ => unreachable!("the place of a product"),
                    },
                    None => {
                        products_of.push((x, is_exact, launches.len()));
                        launches.push(Launch::Linear { x, products: vec![(weight, out)], is_exact });
                    }
                }
            }
            Op::Attention { .. } => launches.push(Launch::Attention(step.clone())),
            Op::Experts { .. } => launches.push(Launch::Experts(step.clone())),
            _ => by_row(plan, step, fuse, &mut launches),
        }
    }
    launches
}

fn by_row(plan: &Plan, step: &Step, fuse: bool, launches: &mut Vec<Launch>) {
    let rows = step.op.writes().first().map_or(Rows::Tokens, |&out| plan.value(out).rows);
    if let Some(Launch::ByRow { rows: same, steps }) = launches.last_mut() {
        // A selected row may be another thread's, so what it is selected from must be finished.
        let selects_from_here =
            matches!(step.op, Op::SelectRows { x, .. } if steps.iter().any(|step| step.op.writes().contains(&x.value)));
        if fuse && *same == rows && !selects_from_here {
            steps.push(step.clone());
            return;
        }
    }
    launches.push(Launch::ByRow { rows, steps: vec![step.clone()] });
}

/// A router's scores are compared, not summed: they keep full precision.
fn feeds_router(plan: &Plan, value: Value) -> bool {
    plan.steps.iter().any(|step| matches!(step.op, Op::Route { scores, .. } if scores == value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::{CacheLayout, PlanBuilder, ScaleBy, Site, WeightShape, WeightSource, WeightSpec, WeightUse};

    fn site(role: &'static str) -> Site {
        Site { layer: None, role }
    }

    fn weight(rows: usize, columns: usize) -> WeightSpec {
        let dtype = checkpoint::DType::F32;
        let source = checkpoint::MatrixSource::Dense { tensor: "w".into(), dtype };
        WeightSpec {
            name: "w".into(),
            shape: WeightShape::Matrix { rows, columns },
            source: WeightSource::Matrix { source, rows: None },
            usage: WeightUse { gathered: true, multiplied: true },
        }
    }

    /// embed, norm, two products of the norm with a scale between, their sum, selection, head.
    fn plan() -> Plan {
        let mut build = PlanBuilder::new(CacheLayout { block_size: 16, groups: vec![] });
        let table = build.weight(weight(8, 4));
        let square = build.weight(weight(4, 4));
        let x = build.embed(site("embed"), table, 1.0);
        let normed = build.rms_norm(site("norm"), build.whole(x), None, 4, 1e-6);
        let a = build.linear(site("a"), normed, square);
        let a = build.scale(site("scale"), a, ScaleBy::Constant(2.0));
        let b = build.linear(site("b"), normed, square);
        let sum = build.add(site("sum"), a, b);
        let wanted = build.select_rows(site("wanted"), build.whole(sum));
        let logits = build.linear(site("head"), wanted, table);
        let sampled = build.sample(site("sample"), logits);
        build.finish(logits, sampled).unwrap()
    }

    #[test]
    fn products_of_one_input_stand_together_and_selection_waits() {
        let launches = fuse(&plan(), true);
        let shape: Vec<usize> = launches
            .iter()
            .map(|launch| match launch {
                Launch::ByRow { steps, .. } => steps.len(),
                Launch::Linear { products, .. } => 10 * products.len(),
                _ => 100,
            })
            .collect();
        // embed+norm; a,b; scale+sum; wanted; head; sample
        assert_eq!(shape, [2, 20, 2, 1, 10, 1]);
    }

    #[test]
    fn unfused_launches_are_the_steps() {
        let plan = plan();
        assert_eq!(fuse(&plan, false).len(), plan.steps.len());
    }
}
