/* What Python calls of layers; memory, and the choice of the ISA. */
#include "layer.h"

#include <stdlib.h>
#include <string.h>

#define FEW_NUMBERS 16384 /* of rows times hidden: what a thread normalises in less time than a barrier costs */

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static int attends(const Layer *layer) { return layer->qkv && !layer->state; }

/* Say which plan each layer's attention has; returns how many there are. */
static int64_t number_plans(Layer *layers, int64_t count) {
    int64_t plans = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!attends(&layers[i])) continue;
        const Cache *own = &layers[i].cache;
        layers[i].plan = plans;
        for (int64_t j = 0; j < i && layers[i].plan == plans; j++) {
            const Cache *other = &layers[j].cache;
            if (attends(&layers[j]) && own->kv_heads == other->kv_heads && own->key_dim == other->key_dim &&
                own->value_dim == other->value_dim && own->kind == other->kind && own->latent == other->latent)
                layers[i].plan = layers[j].plan;
        }
        plans += layers[i].plan == plans;
    }
    return plans;
}

EXPORT Stack *parley_stack_open(const Shape *shape, const Layer *layers, int64_t count) {
    Stack *stack = calloc(1, sizeof *stack);
    Layer *copy = malloc((size_t)(count ? count : 1) * sizeof *copy);
    if (!stack || !copy) {
        free(stack);
        free(copy);
        return NULL;
    }
    memcpy(copy, layers, (size_t)count * sizeof *copy);
    stack->plan_count = number_plans(copy, count);
    stack->plans = calloc((size_t)stack->plan_count + 1, sizeof *stack->plans);
    if (!stack->plans) {
        free(stack);
        free(copy);
        return NULL;
    }
    stack->shape = *shape;
    stack->layers = copy;
    stack->count = count;
    for (int64_t i = 0; i < count; i++) {
        const Mixture *mixture = layers[i].mixture;
        if (!mixture) continue;
        stack->mixes_beside |= layers[i].parallel != 0;
        stack->mixing.outputs = most(stack->mixing.outputs, mixture->router->n);
        stack->mixing.chosen = most(stack->mixing.chosen, mixture->chosen);
    }
    return stack;
}

EXPORT void parley_stack_close(Stack *stack) {
    for (int64_t i = 0; i < stack->plan_count; i++) attention_plan_free(&stack->plans[i]);
    free(stack->plans);
    free(stack->memory);
    free(stack->mixing.work.memory);
    free((void *)stack->layers);
    free(stack);
}

/* Bytes that preparing `rows` rows for any of the linears takes. */
static int64_t prepared_bytes(const Library *library, const Stack *stack, const Ends *ends, int64_t rows) {
    int64_t bytes = ends ? (int64_t)linear_input_bytes(library, ends->head, rows) : 0;
    if (ends && ends->per_layer)
        bytes = most(bytes, (int64_t)linear_input_bytes(library, ends->per_layer->projection, rows));
    for (int64_t i = 0; i < stack->count; i++) {
        const Layer *layer = &stack->layers[i];
        const Linear *router = layer->mixture ? layer->mixture->router : NULL;
        const PerLayer *own = layer->per_layer;
        const Selection *selection = layer->state ? layer->state->selection : NULL;
        const Linear *queries = layer->latent ? layer->latent->queries : NULL;
        const Linear *linears[] = {layer->qkv, layer->out, layer->gate_up, layer->down, router, queries,
                                   selection ? selection->projects : NULL, selection ? selection->widens : NULL,
                                   own ? own->gate : NULL, own ? own->projection : NULL};
        for (int j = 0; j < 10; j++)
            if (linears[j]) bytes = most(bytes, (int64_t)linear_input_bytes(library, linears[j], rows));
    }
    return bytes;
}

/* The most inner numbers of a layer's MLP; `shared`: of those where gates and ups share a panel. */
static int64_t most_inner(const Stack *stack, int shared) {
    int64_t found = 0;
    for (int64_t i = 0; i < stack->count; i++) {
        const Linear *down = stack->layers[i].down;
        if (down && (!shared || down->k % PANEL)) found = most(found, down->k);
    }
    return found;
}

/* The most numbers that a layer's first linear gives, or (`reads`) its second one reads. */
static int64_t most_mixed(const Stack *stack, int reads) {
    int64_t found = 0;
    for (int64_t i = 0; i < stack->count; i++) {
        const Layer *layer = &stack->layers[i];
        if (layer->qkv) found = most(found, reads ? layer->out->k : layer->qkv->n);
    }
    return found;
}

static int64_t most_channels(const Stack *stack) {
    int64_t found = 0;
    for (int64_t i = 0; i < stack->count; i++)
        if (stack->layers[i].state) found = most(found, stack->layers[i].state->convolution.channels);
    return found;
}

static void *take(char **next, int64_t bytes) {
    void *taken = *next;
    *next += (bytes + 63) / 64 * 64;
    return taken;
}

static void lay_out_selection(Stack *stack, int64_t row, char **next) {
    int64_t selected = 0, rank = 0, channels = 0;
    for (int64_t i = 0; i < stack->count; i++) {
        const Selection *found = stack->layers[i].state ? stack->layers[i].state->selection : NULL;
        if (!found) continue;
        selected = most(selected, found->projects->n);
        rank = most(rank, found->widens->k);
        channels = most(channels, found->scan.channels);
    }
    stack->selected = take(next, row * selected);
    stack->times = take(next, row * rank);
    stack->steps = take(next, row * channels);
}

static int64_t most_side(const Stack *stack) {
    int64_t found = 0;
    for (int64_t i = 0; i < stack->count; i++)
        if (stack->layers[i].per_layer) found = most(found, stack->layers[i].per_layer->gate->n);
    return found;
}

/* Cut the step for each shape of caches. */
static int plan_step(Stack *stack, const StackCall *call) {
    for (int64_t i = 0, plans = 0; plans < stack->plan_count; i++) {
        const Layer *layer = &stack->layers[i];
        if (!attends(layer) || layer->plan < plans) continue;
        AttentionPlan *plan = &stack->plans[plans++];
        if (attention_plan(plan, call->step, &layer->cache, stack->shape.heads, call->library)) return -1;
        if (call->trims) attention_want(plan, call->tokens->rows, call->tokens->count);
    }
    return 0;
}

static void lay_out_screening(Stack *stack, const Library *library, const Ends *ends, char **next) {
    Screening *s = &stack->screening;
    const Screen *screen = ends->screen;
    int64_t rows = s->rows, panels = linear_panels(screen->linear), number = (int64_t)sizeof(float);
    int64_t prepared = (int64_t)linear_input_bytes(library, screen->linear, rows);
    s->prepared = shares_input(ends) ? stack->prepared : take(next, prepared);
    s->norms = take(next, rows * number);
    s->lost = take(next, rows * number);
    s->sure = take(next, rows * panels * number);
    s->possible = take(next, rows * panels * number);
    s->counts = take(next, rows * number);
    s->candidates = take(next, rows * SCREEN_MOST * number);
    s->parts = take(next, rows * SCREEN_PARTS * (int64_t)sizeof(Part));
    s->left = take(next, number);
}

static void lay_out_mixing(Stack *stack, int64_t rows, char **next) {
    Mixing *m = &stack->mixing;
    const int64_t number = (int64_t)sizeof(float), some = m->chosen ? rows : 0;
    m->logits = take(next, some * m->outputs * number);
    m->scores = take(next, some * m->outputs * number);
    m->experts = take(next, some * m->chosen * (int64_t)sizeof(int64_t));
    m->weights = take(next, some * m->chosen * number);
    m->factors = take(next, some * number);
    m->shared = take(next, some * stack->shape.hidden * number);
}

/* What layers with latents need; of each the most of any. */
static void lay_out_latents(Stack *stack, const StackCall *call, char **next) {
    LatentWork *work = &stack->latents;
    const int64_t rows = call->rows, row = rows * (int64_t)sizeof(float);
    int64_t lowered = 0, queries = 0, absorbed = 0, found = 0, prepared = 0;
    for (int64_t i = 0; i < stack->count; i++) {
        const LatentMixer *mixer = stack->layers[i].latent;
        if (!mixer) continue;
        if (mixer->queries) lowered = most(lowered, mixer->queries->k);
        if (mixer->queries) queries = most(queries, mixer->queries->n);
        absorbed = most(absorbed, mixer->heads * latent_key_dim(mixer));
        found = most(found, mixer->heads * mixer->rank);
        prepared = most(prepared, mixer->heads * products_bytes(call->library, mixer->keys, mixer->heads, rows));
        prepared = most(prepared, mixer->heads * products_bytes(call->library, mixer->values, mixer->heads, rows));
    }
    work->lowered = take(next, row * lowered);
    work->queries = take(next, row * queries);
    work->absorbed = take(next, row * absorbed);
    work->found = take(next, row * found);
    work->prepared = take(next, prepared);
    work->positions = absorbed ? take(next, rows * (int64_t)sizeof(int64_t)) : NULL;
}

/* The position of each row, for those. */
static void note_positions(const Stack *stack, const Step *step) {
    for (int64_t i = 0, row = 0; stack->latents.positions && i < step->pieces; i++)
        for (int64_t at = step->starts[i]; at < step->stops[i]; at++) stack->latents.positions[row++] = at;
}

/* Have memory for experts, whose sizes depend on what this CPU multiplies by. */
static int reserve_experts(Stack *stack, const StackCall *call) {
    Mixing *m = &stack->mixing;
    const int known = m->sizes.count > 0;
    if (!m->chosen) return 0;
    for (int64_t i = 0; !known && i < stack->count; i++) {
        const Mixture *mixture = stack->layers[i].mixture;
        if (mixture) experts_include(call->library, mixture->experts, &m->sizes);
    }
    return experts_reserve(&m->sizes, call->rows, m->chosen, &m->work);
}

/* Lay the buffers out for the call's rows from `start` on; returns how many bytes they take. */
static int64_t lay_out(Stack *stack, const StackCall *call, char *start) {
    const Library *library = call->library;
    const Ends *ends = call->ends;
    int64_t rows = call->rows;
    const Shape *shape = &stack->shape;
    char *next = start;
    int64_t row = rows * (int64_t)sizeof(float), prepared = prepared_bytes(library, stack, ends, rows);
    stack->hidden[0] = take(&next, row * shape->hidden);
    stack->hidden[1] = take(&next, row * shape->hidden);
    stack->normed = take(&next, row * shape->hidden);
    stack->given = take(&next, row * shape->hidden);
    stack->beside = take(&next, stack->mixes_beside ? row * shape->hidden : 0);
    stack->qkv = take(&next, row * most(most_mixed(stack, 0), most_mixed(stack, 1)));
    stack->attended = take(&next, row * most_mixed(stack, 1));
    stack->convolved = take(&next, row * most_channels(stack));
    lay_out_selection(stack, row, &next);
    stack->gate_up = take(&next, row * 2 * most_inner(stack, 1));
    stack->inner = take(&next, row * most_inner(stack, 0));
    stack->side = take(&next, row * most_side(stack));
    stack->per_layer = take(&next, ends && ends->per_layer ? row * ends->per_layer->projection->n : 0);
    stack->prepared = take(&next, prepared);
    int64_t low = call->adapters ? (row * stack->adapters.rank + 63) / 64 * 16 : 0; /* floats */
    stack->low = take(&next, call->few ? 0 : low * (int64_t)sizeof(float));
    stack->own_inputs = call->few ? (row * shape->hidden + 63) / 64 * 16 + (prepared + 63) / 64 * 16 : 0;
    stack->own_size = call->few ? stack->own_inputs + low : 0;
    stack->own = take(&next, stack->own_size * (int64_t)sizeof(float) * library->threads);
    const int64_t left = call->trims && call->adapters ? call->tokens->count : 0;
    stack->adapters_left = take(&next, left * (int64_t)sizeof(int32_t));
    lay_out_mixing(stack, rows, &next);
    lay_out_latents(stack, call, &next);
    stack->screening.rows = ends && ends->screen && call->tokens->only ? call->tokens->count : 0;
    if (stack->screening.rows) lay_out_screening(stack, library, ends, &next);
    return next - start;
}

static int reserve(Stack *stack, const StackCall *call) {
    int64_t bytes = lay_out(stack, call, NULL);
    if (bytes > stack->room) {
        void *memory = aligned_alloc(64, (size_t)bytes);
        if (!memory) return -1;
        free(stack->memory);
        stack->memory = memory;
        stack->room = bytes;
    }
    lay_out(stack, call, stack->memory);
    return 0;
}

static Task stack_task(const Library *library) {
    switch (library->isa) {
#if defined(__x86_64__)
    case ISA_AVX512: return stack_task_avx512;
    case ISA_AVX2: return stack_task_avx2;
#endif
    default: return stack_task_baseline;
    }
}

static int run(StackCall *call) {
    Stack *stack = call->stack;
    call->rows = call->step->tokens;
    call->few = call->rows * stack->shape.hidden <= FEW_NUMBERS;
    const int mixes_last = stack->count && stack->layers[stack->count - 1].qkv;
    call->trims = mixes_last && call->ends && call->ends->trims && call->tokens->count < call->rows;
    if (reserve(stack, call) || reserve_experts(stack, call)) return -1;
    if (plan_step(stack, call)) return -1;
    note_positions(stack, call->step);
    if (call->ends && call->ends->per_layer) {
        call->per_layer = stack->per_layer;
        call->per_layer_stride = call->ends->per_layer->projection->n;
    }
    stack->lost = 0;
    pool_run(call->library, stack_task(call->library), call, 1);
    return stack->lost ? -3 : 0;
}

/* Take adapters, whose memory stays the caller's. */
EXPORT void parley_stack_adapt(Stack *stack, const LowRanks *linears, int64_t rank) {
    stack->adapters = (Adapters){.linears = linears, .rank = rank};
}

/* Have layers that keep a state know the steps from now on, whose memory stays the caller's. */
EXPORT void parley_stack_states(Stack *stack, const Runs *runs) { stack->runs = runs; }

/* Have layers that are a share of the model's added up with the others'. */
EXPORT void parley_stack_share(Stack *stack, Reduce reduce, void *context) {
    stack->reduce = reduce;
    stack->reduces = context;
}

/* hidden (rows, hidden) -> out; `per_layer`: layers' own inputs, by row. Returns 0, -1 if there is no memory, or -3 if shares could not be added up. */
EXPORT int parley_stack_run(const Library *library, Stack *stack, const Step *step, const float *const *cosines,
                            const float *const *sines, const int32_t *adapters, const float *in,
                            float *out, const float *per_layer, int64_t per_layer_stride) {
    StackCall call = {.stack = stack, .library = library, .step = step, .cosines = cosines, .sines = sines,
                      .adapters = adapters, .in = in, .out = out,
                      .per_layer = per_layer, .per_layer_stride = per_layer_stride};
    return step->tokens ? run(&call) : 0;
}

/* A whole model; `cosines` and `sines` of each rotary embedding are by position, unless the tokens say by row. Returns 0,
 * -1 if there is no memory, -2 if an id is no row of the embedding or of what is given, or -3 if shares could not be
 * added up. */
EXPORT int parley_model_run(const Library *library, Stack *stack, const Ends *ends, const Step *step,
                            const float *const *cosines, const float *const *sines, const Tokens *tokens) {
    StackCall call = {.stack = stack, .library = library, .step = step, .cosines = cosines, .sines = sines,
                      .by_position = !tokens->by_row, .adapters = tokens->adapters, .ends = ends, .tokens = tokens};
    for (int64_t row = 0; row < step->tokens; row++)
        if (tokens->ids[row] < 0 || tokens->ids[row] >= ends->vocabulary + tokens->given_count) return -2;
    return step->tokens ? run(&call) : 0;
}
