/* Gradients of single examples of sigmoid networks, their derivative in the inputs, gradients of ReLU
   networks, and directions of L-BFGS, one example or problem after another, so that all that is needed for one stays in the cache
   of a core. float32 only. Its numbers depend on nothing but itself, and are the same on every
   processor that multiplies and adds with one rounding (AVX2 and FMA): the order of every sum is
   written down here.

   The sweeps are those of sigmoid_gradients.py, where they are derived. A layer's result has `width` numbers a pixel, its channels and zeros up to a multiple of 16. Images
   are channels last, with a margin of 2 pixels; a patch is 5 pieces of 5 `in` numbers each. */

#ifndef SOURCES
#define SOURCES ""
#endif

/* SHA-256 of the files that this was built from. */
const char *leakbench_sources(void) { return SOURCES; }

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 5, TAPS = SIDE * SIDE, MARGIN = 2, MOST = 16 };

struct layer {
    long in, out, rows, columns, stride; /* of the image that it takes */
    const float *kernel, *bias;          /* (out, in, 5, 5), (out) */
    long across, pixels, width, segment; /* of what it makes; segment: 5 in, up to a multiple of 16 */
    long image;                          /* numbers of a padded image */
    int *pixel, *tap;                    /* where the patch of a pixel begins, and its numbers lie */
};

struct network {
    int layers, classes;
    struct layer layer[MOST];
    const float *head, *head_bias; /* (classes, features), (classes) */
};

/* Of one example, between the two sweeps. */
struct kept {
    float *image[MOST], *a[MOST], *delta[MOST];
    float *features, *p, *top, *mass;
};

struct scratch {
    float *by_patch[MOST], *by_channel[MOST], *bias[MOST], *up[MOST], *image[MOST];
    float *head, *logits, *back, *down, *pair, *kernel, *row, *room, *tall, *wide;
    int *counting;
};

/* A convolution without bias, then ReLU and 2x2 pooling. Of a result only what pooling looks at is
   computed: 4 down across pixels. */
struct stage {
    long in, out, rows, columns, side, margin; /* of the image that it takes, its kernel and zeros */
    long down, across, width, stretch;         /* what it makes; stretch: of a patch, as `width` */
    long line, numbers;                        /* pixels of a line, and numbers, of the padded image */
    float *image, *patches, *a, *gradient;     /* gradient: [out][stretch] */
    float *by_patch, *by_channel;              /* the kernel: [side][side][in][width], [out][stretch] */
    int *which, *begins, *offsets; /* of a window; where a patch begins in image and patches */
};

struct stages {
    int layers;
    long classes;
    struct stage stage[MOST];
    float *head, *results, *features, *logits, *p, *back, *below, *values;
    const float **from;
    int *passed, *counting;
};

/* Pairs (s, y) of all problems in rings of `size`, as in histories.py; `line`: size, up to a multiple
   of 16. pairs: how many each problem has taken. */
struct history {
    long numbers, size, line;
    float *s, *y, *products, *rho, *scale, *room;
    long long *pairs;
};

static float sum_of_parts(const float *parts)
{
    float sums[8];
    for (int k = 0; k < 8; k++)
        sums[k] = parts[k] + parts[k + 8];
    for (int k = 0; k < 4; k++)
        sums[k] += sums[k + 4];
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

#define LANES 8
#define ROWS 6
#define TARGET "avx2,fma"
#define FMA(a, b, c) ((vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define NAME(name) name##_8
#include "sigmoid.inc"
#include "relu.inc"
#include "lbfgs.inc"
#undef LANES
#undef ROWS
#undef TARGET
#undef FMA
#undef NAME

#define LANES 16
#define ROWS 8
#define TARGET "avx512f,avx2,fma"
#define FMA(a, b, c) ((vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define NAME(name) name##_16
#include "sigmoid.inc"
#include "relu.inc"
#include "lbfgs.inc"
#undef LANES
#undef ROWS
#undef TARGET
#undef FMA
#undef NAME

#include "normals.inc"

static long up_to(long value, long multiple) { return (value + multiple - 1) / multiple * multiple; }

/* Numbers begin at multiples of 16 of them. */
static float *take(float **from, long count)
{
    float *taken = *from;
    *from += up_to(count, 16);
    return taken;
}

static long place_kept(const struct network *net, struct kept *kept, float *from)
{
    float *next = from;
    const struct layer *last = net->layer + net->layers - 1;
    for (int l = 0; l < net->layers; l++) {
        kept->image[l] = take(&next, net->layer[l].image);
        kept->a[l] = take(&next, net->layer[l].pixels * net->layer[l].width);
        kept->delta[l] = take(&next, net->layer[l].pixels * net->layer[l].width);
    }
    kept->features = take(&next, last->pixels * last->out);
    kept->p = take(&next, net->classes);
    kept->top = take(&next, net->classes);
    kept->mass = take(&next, 1);
    return next - from;
}

static long place_scratch(const struct network *net, struct scratch *at, float *from)
{
    float *next = from;
    long numbers = 0, kernel = 0, width = 0, room = 0, tall = 0, wide = 0, out = 0;
#define LARGEST(name, value) name = (value) > name ? (value) : name
    for (int l = 0; l < net->layers; l++) {
        const struct layer *layer = net->layer + l;
        at->by_patch[l] = take(&next, TAPS * layer->in * layer->width);
        at->by_channel[l] = take(&next, 2 * layer->out * SIDE * layer->segment);
        at->bias[l] = take(&next, layer->width);
        at->up[l] = take(&next, layer->pixels * layer->width);
        at->image[l] = take(&next, layer->image);
        LARGEST(numbers, layer->pixels * layer->width);
        LARGEST(kernel, TAPS * layer->in * layer->width);
        LARGEST(width, layer->width);
        LARGEST(room, TAPS * layer->in);
        LARGEST(room, layer->pixels * layer->out);
        LARGEST(room, layer->rows * layer->columns * layer->in);
        LARGEST(tall, (layer->rows + 2 * MARGIN) * layer->across * layer->segment);
        LARGEST(wide, (layer->columns + 2 * MARGIN) * layer->in);
        LARGEST(out, layer->out);
    }
#undef LARGEST
    const struct layer *last = net->layer + net->layers - 1;
    at->head = take(&next, net->classes * last->pixels * last->width);
    at->logits = take(&next, net->classes);
    at->back = take(&next, numbers);
    at->down = take(&next, numbers);
    at->pair = take(&next, 2 * numbers);
    at->kernel = take(&next, kernel);
    at->row = take(&next, width);
    at->room = take(&next, room);
    at->tall = take(&next, tall);
    at->wide = take(&next, wide);
    at->counting = (int *)take(&next, out);
    return next - from + 16;
}

/* shape: in, rows, columns of the inputs, classes, then out and stride of every layer.
   weights: kernel and bias of every layer, then of the head; may be null for the sizes alone. */
static void describe(struct network *net, const long *shape, int layers, const float *const *weights)
{
    long in = shape[0], rows = shape[1], columns = shape[2];
    net->layers = layers;
    net->classes = (int)shape[3];
    for (int l = 0; l < layers; l++) {
        struct layer *layer = net->layer + l;
        long stride = shape[5 + 2 * l], across = (columns + stride - 1) / stride;
        long down = (rows + stride - 1) / stride;
        *layer = (struct layer){
            .in = in, .out = shape[4 + 2 * l], .rows = rows, .columns = columns, .stride = stride,
            .across = across, .pixels = across * down, .width = up_to(shape[4 + 2 * l], 16),
            .segment = up_to(SIDE * in, 16),
            .image = (rows + 2 * MARGIN) * (columns + 2 * MARGIN) * in,
        };
        if (weights) {
            layer->kernel = weights[2 * l];
            layer->bias = weights[2 * l + 1];
        }
        in = layer->out, rows = down, columns = across;
    }
    if (weights) {
        net->head = weights[2 * layers];
        net->head_bias = weights[2 * layers + 1];
    }
}

/* How wide the vectors of this processor are: 16, 8, or 0 where it lacks AVX2 or FMA. */
int leakbench_lanes(void)
{
    if (__builtin_cpu_supports("avx512f"))
        return 16;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 8 : 0;
}

/* Numbers that `leakbench_gradients` keeps of an example. */
long leakbench_kept(const long *shape, int layers)
{
    struct network net = {0};
    struct kept kept;
    describe(&net, shape, layers, 0);
    return place_kept(&net, &kept, 0);
}

struct call {
    struct network net;
    struct scratch at;
    int *places;
    float *memory;
};

static int begin(struct call *call, const long *shape, int layers, const float *const *weights, int lanes)
{
    struct network *net = &call->net;
    long places = 0;
    describe(net, shape, layers, weights);
    for (int l = 0; l < layers; l++)
        places += net->layer[l].pixels + TAPS * net->layer[l].in;
    call->memory = calloc(place_scratch(net, &call->at, 0), sizeof(float));
    int *next = call->places = malloc(places * sizeof(int));
    if (!call->memory || !next)
        return 0;
    place_scratch(net, &call->at, (float *)(((size_t)call->memory + 63) / 64 * 64));
    for (int l = 0; l < layers; l++) {
        struct layer *layer = net->layer + l;
        long line = layer->columns + 2 * MARGIN;
        layer->pixel = next;
        for (long p = 0; p < layer->pixels; p++)
            *next++ = (int)((p / layer->across * line + p % layer->across) * layer->stride * layer->in);
        layer->tap = next;
        for (long k = 0; k < TAPS * layer->in; k++)
            *next++ = (int)(k / (SIDE * layer->in) * line * layer->in + k % (SIDE * layer->in));
        for (long o = 0; o < layer->out; o++)
            call->at.counting[o] = (int)o;
    }
    lanes == 16 ? prepare_16(net, &call->at) : prepare_8(net, &call->at);
    return 1;
}

static void end(struct call *call)
{
    free(call->memory);
    free(call->places);
}

static void sizes_of(const struct network *net, long *sizes)
{
    const struct layer *last = net->layer + net->layers - 1;
    for (int l = 0; l < net->layers; l++) {
        sizes[2 * l] = TAPS * net->layer[l].in * net->layer[l].out;
        sizes[2 * l + 1] = net->layer[l].out;
    }
    sizes[2 * net->layers] = net->classes * last->pixels * last->out;
    sizes[2 * net->layers + 1] = net->classes;
}

/* Of n examples: inputs (n, in, rows, columns), labels (n, classes) -> found, one array a weight,
   (n, its shape), and kept (n, leakbench_kept). Zero where there is no memory. */
int leakbench_gradients(
    const long *shape, int layers, const float *const *weights, long n, const float *inputs,
    const float *labels, float *kept, float *const *found, int lanes)
{
    struct call call = {0};
    long sizes[2 * MOST + 2], pixels = shape[0] * shape[1] * shape[2];
    long each = leakbench_kept(shape, layers);
    int done = begin(&call, shape, layers, weights, lanes);
    sizes_of(&call.net, sizes);
    for (long row = 0; done && row < n; row++) {
        struct kept own;
        float *to[2 * MOST + 2];
        place_kept(&call.net, &own, kept + row * each);
        for (int l = 0; l < layers; l++)
            memset(own.image[l], 0, sizeof(float) * call.net.layer[l].image);
        for (int k = 0; k < 2 * layers + 2; k++)
            to[k] = found[k] + row * sizes[k];
        (lanes == 16 ? gradients_16 : gradients_8)(
            &call.net, &call.at, inputs + row * pixels, labels + row * shape[3], &own, to);
    }
    end(&call);
    return done;
}

/* by: as `found`; -> by_inputs (n, in, rows, columns) and, unless null, by_labels (n, classes). */
int leakbench_derivative(
    const long *shape, int layers, const float *const *weights, long n, float *kept,
    const float *const *by, float *by_inputs, float *by_labels, int lanes)
{
    struct call call = {0};
    long sizes[2 * MOST + 2], pixels = shape[0] * shape[1] * shape[2];
    long each = leakbench_kept(shape, layers);
    int done = begin(&call, shape, layers, weights, lanes);
    sizes_of(&call.net, sizes);
    for (long row = 0; done && row < n; row++) {
        struct kept own;
        const float *from[2 * MOST + 2];
        place_kept(&call.net, &own, kept + row * each);
        for (int k = 0; k < 2 * layers + 2; k++)
            from[k] = by[k] + row * sizes[k];
        (lanes == 16 ? derivative_16 : derivative_8)(
            &call.net, &call.at, &own, from, by_inputs + row * pixels,
            by_labels ? by_labels + row * shape[3] : 0);
    }
    end(&call);
    return done;
}

/* New directions of `count` problems, numbers `rows` of the arrays g, previous, d (..., numbers) and t:
   see `direction`. previous becomes g; columns (count, 2): see `slope`. room: 2 numbers + 3 line. */
void leakbench_directions(
    const long *sizes, float *const *arrays, long long *pairs, long count, const long long *rows,
    const unsigned char *begun, const float *g, float *previous, const float *t, float *d,
    float *columns, float *room, int lanes)
{
    struct history of = {
        .numbers = sizes[0], .size = sizes[1], .line = up_to(sizes[1], 16), .s = arrays[0],
        .y = arrays[1], .products = arrays[2], .rho = arrays[3], .scale = arrays[4], .room = room,
        .pairs = pairs,
    };
    for (long i = 0; i < count; i++) {
        long row = rows[i], from = row * of.numbers;
        (lanes == 16 ? direction_16 : direction_8)(
            &of, row, begun[i], g + from, previous + from, t[row], d + from);
        memcpy(previous + from, g + from, sizeof(float) * of.numbers);
        (lanes == 16 ? slope_16 : slope_8)(of.numbers, g + from, d + from, columns + 2 * i);
    }
}

/* Lays the arrays of a network of stages out; the sizes of the room that they take, in 4 bytes. */
static long place_stages(struct stages *net, float *from)
{
    float *next = from;
    long results = 0, numbers = 0, back = 0, pixels = 0, patch = 0;
#define LARGEST(name, value) name = (value) > name ? (value) : name
    for (int l = 0; l < net->layers; l++) {
        struct stage *stage = net->stage + l;
        long made = stage->down * stage->across;
        stage->image = take(&next, stage->numbers);
        stage->patches = take(&next, 4 * made * stage->stretch);
        stage->a = take(&next, made * stage->width);
        stage->gradient = take(&next, stage->out * stage->stretch);
        stage->by_patch = take(&next, stage->side * stage->side * stage->in * stage->width);
        stage->by_channel = take(&next, stage->out * stage->stretch);
        stage->which = (int *)take(&next, made * stage->width);
        stage->begins = (int *)take(&next, 4 * made);
        stage->offsets = (int *)take(&next, 4 * made);
        LARGEST(results, 4 * made * stage->width);
        LARGEST(numbers, stage->numbers);
        LARGEST(back, made * stage->width);
        LARGEST(pixels, made);
        LARGEST(patch, stage->stretch);
    }
#undef LARGEST
    const struct stage *last = net->stage + net->layers - 1;
    net->head = take(&next, net->classes * last->down * last->across * last->width);
    net->results = take(&next, results);
    net->features = take(&next, last->down * last->across * last->out);
    net->logits = take(&next, net->classes);
    net->p = take(&next, net->classes);
    net->back = take(&next, back);
    net->below = take(&next, numbers);
    net->values = take(&next, pixels);
    net->from = (const float **)take(&next, 2 * pixels);
    net->passed = (int *)take(&next, pixels);
    net->counting = (int *)take(&next, patch);
    return next - from + 16;
}

/* A network of stages, and all that it needs but weights; null where there is no memory.
   shape: in, rows, columns of the inputs, classes, side and margin of the kernels, then out of every
   layer. */
static float *begin_stages(struct stages *net, const long *shape, int layers)
{
    long in = shape[0], rows = shape[1], columns = shape[2], side = shape[4], margin = shape[5];
    long patch = 0;
    *net = (struct stages){.layers = layers, .classes = shape[3]};
    for (int l = 0; l < layers; l++) {
        struct stage *stage = net->stage + l;
        *stage = (struct stage){
            .in = in, .out = shape[6 + l], .rows = rows, .columns = columns, .side = side,
            .margin = margin, .down = (rows + 2 * margin - side + 1) / 2,
            .across = (columns + 2 * margin - side + 1) / 2, .width = up_to(shape[6 + l], 16),
            .stretch = up_to(side * side * in, 16), .line = columns + 2 * margin,
            .numbers = (rows + 2 * margin) * (columns + 2 * margin) * in,
        };
        in = stage->out, rows = stage->down, columns = stage->across;
    }
    float *memory = calloc(place_stages(net, 0), sizeof(float));
    if (!memory)
        return 0;
    place_stages(net, (float *)(((size_t)memory + 63) / 64 * 64));
    for (int l = 0; l < layers; l++) {
        struct stage *stage = net->stage + l;
        for (long r = 0; r < 4 * stage->down * stage->across; r++) {
            long y = r / (2 * stage->across), x = r % (2 * stage->across);
            stage->begins[r] = (int)((y * stage->line + x) * stage->in);
            stage->offsets[r] = (int)(r * stage->stretch);
        }
        patch = stage->stretch > patch ? stage->stretch : patch;
    }
    for (long k = 0; k < patch; k++)
        net->counting[k] = (int)k;
    return memory;
}

static long features_of(const struct stages *net)
{
    const struct stage *last = net->stage + net->layers - 1;
    return last->out * last->down * last->across;
}

/* shape: see `begin_stages`. weights: every kernel (clients, out, in, side, side), then the head
   (clients, classes, features). inputs (clients, n, in, rows, columns), labels (clients, n, classes)
   -> found, one array a weight, (clients, n / group, its shape): gradients of the sum of the losses of
   every `group` examples. Zero where there is no memory. */
int leakbench_relu(
    const long *shape, int layers, const float *const *weights, long clients, long n, long group,
    const float *inputs, const float *labels, float *const *found, int lanes)
{
    struct stages net;
    float *memory = begin_stages(&net, shape, layers);
    if (!memory)
        return 0;
    long pixels = shape[0] * shape[1] * shape[2], head = net.classes * features_of(&net);
    for (long client = 0; client < clients; client++) {
        const float *own[MOST + 1];
        for (int l = 0; l < layers; l++) {
            const struct stage *stage = net.stage + l;
            own[l] = weights[l] + client * stage->out * stage->in * stage->side * stage->side;
        }
        own[layers] = weights[layers] + client * head;
        (lanes == 16 ? stages_16 : stages_8)(&net, own);
        for (long k = 0; k < n; k++) {
            long row = client * n + k, done = row / group;
            (lanes == 16 ? example_16 : example_8)(
                &net, inputs + row * pixels, labels + row * net.classes, row % group == 0,
                found[layers] + done * head);
            if (row % group == group - 1)
                (lanes == 16 ? hand_over_16 : hand_over_8)(&net, found, done);
        }
    }
    free(memory);
    return 1;
}

/* Of n examples: inputs (n, in, rows, columns) -> logits (n, classes); shape as above, weights without
   clients. Zero where there is no memory. */
int leakbench_relu_logits(
    const long *shape, int layers, const float *const *weights, long n, const float *inputs,
    float *logits, int lanes)
{
    struct stages net;
    float *memory = begin_stages(&net, shape, layers);
    if (!memory)
        return 0;
    (lanes == 16 ? stages_16 : stages_8)(&net, weights);
    for (long row = 0; row < n; row++) {
        (lanes == 16 ? forward_16 : forward_8)(&net, inputs + row * shape[0] * shape[1] * shape[2]);
        memcpy(logits + row * net.classes, net.logits, sizeof(float) * net.classes);
    }
    free(memory);
    return 1;
}
