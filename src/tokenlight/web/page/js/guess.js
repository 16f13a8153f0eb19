// Your turn: hide words by clicking them, and see whether you know better than the methods.

import { ask } from "./api.js";
import { fieldsInUse, state, update } from "./store.js";
import { buildTarget, showFailure } from "./work.js";

let latest = 0;

/** Whether the user can play: the text is the complete text of the form, and its model is served. */
export function canGuess() {
  const { cut } = state.entries[0].attribution.row;
  return state.served && !state.source && !cut;
}

/** Hide or show a word, and run the model on the order so far. */
export async function click(tokens) {
  const before = state.guess?.order ?? [];
  const order = before.includes(tokens[0])
    ? before.filter((token) => !tokens.includes(token))
    : [...before, ...tokens];
  const turn = (latest += 1);
  if (!order.length) {
    update({ guess: null, step: 0 });
    return;
  }
  update({ guess: { order, game: null } });
  const question = { model: state.model, order, random_orders: 0 };
  for (const field of fieldsInUse()) question[field] = state[field];
  const target = buildTarget();
  if (target !== null) question.target = target;
  try {
    const {
      games: [game],
    } = await ask("/api/perturb", question);
    // A faster answer to a later click must stand.
    if (turn === latest && state.guess) update({ guess: { order, game }, step: order.length });
  } catch (failure) {
    showFailure(failure, () => click([]));
  }
}
