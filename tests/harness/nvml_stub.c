/* A libnvidia-ml.so.1 that answers as a script tells it, so that the real pynvml can be tested without a GPU.
 *
 * The script is the file named by NVML_STUB, one command a line ('#' begins a comment; DEVICE is an index or '*'):
 *   devices COUNT                         whole devices, with UUIDs GPU-00000000-0000-0000-0000-00000000000N
 *   mig DEVICE COUNT                      switches MIG on and makes slices, with UUIDs MIG-...-000N-...
 *   set DEVICE NAME VALUE                 a value, see the names in `get(..., "NAME")` below; missing ones are sensible
 *   ramp DEVICE NAME STEP                 the value grows by so much with each call
 *   fail FUNCTION CODE [AFTER [DEVICE]]   returns this error, after so many good calls, for this device only
 *   sleep FUNCTION MICROSECONDS           answers late
 * Compiled with -DOLD_DRIVER it lacks the functions that older drivers lack. A null handle aborts, as real ones may.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Result;
typedef struct { int index, slice; char uuid[96]; } Device;
typedef struct { char device[8], name[64]; double value; } Setting;
typedef struct { char function[64]; int code, after, device; long seen; } Failure;
typedef struct { char function[64]; long us; } Delay;

static Device cards[16], slices[16][8];
static Setting settings[256], ramps[64];
static Failure failures[64];
static Delay delays[16];
static int card_count, slice_count[16], setting_count, ramp_count, failure_count, delay_count, initialised;

static void make(Device *device, int index, int slice) {
    device->index = index;
    device->slice = slice;
    if (slice < 0) snprintf(device->uuid, 96, "GPU-%08x-0000-0000-0000-%012x", index, index);
    else snprintf(device->uuid, 96, "MIG-%08x-%04x-0000-0000-%012x", index, slice + 1, slice);
}

static void read_script(void) {
    char line[256], a[64], b[64], c[64], d[64];
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    card_count = setting_count = ramp_count = failure_count = delay_count = 0;
    while (file && fgets(line, sizeof line, file)) {
        int words = (strcpy(a, ""), strcpy(b, ""), strcpy(c, ""), strcpy(d, ""), 0);
        char command[32] = "";
        words = sscanf(line, "%31s %63s %63s %63s %63s", command, a, b, c, d);
        if (words < 2 || command[0] == '#') continue;
        if (!strcmp(command, "devices")) card_count = atoi(a);
        else if (!strcmp(command, "mig")) slice_count[atoi(a)] = atoi(b);
        else if (!strcmp(command, "set") || !strcmp(command, "ramp")) {
            Setting *entry = command[0] == 's' ? &settings[setting_count++] : &ramps[ramp_count++];
            snprintf(entry->device, 8, "%.7s", a);
            snprintf(entry->name, 64, "%s", b);
            entry->value = strtod(c, NULL);
        } else if (!strcmp(command, "fail")) {
            Failure *entry = &failures[failure_count++];
            snprintf(entry->function, 64, "%s", a);
            entry->code = atoi(b);
            entry->after = atoi(c);
            entry->device = words > 4 ? atoi(d) : -1;
            entry->seen = 0;
        } else if (!strcmp(command, "sleep")) {
            snprintf(delays[delay_count].function, 64, "%s", a);
            delays[delay_count++].us = atol(b);
        }
    }
    if (file) fclose(file);
    for (int i = 0; i < card_count; i++) {
        make(&cards[i], i, -1);
        for (int j = 0; j < slice_count[i]; j++) make(&slices[i][j], i, j);
    }
}

static int is_for(const Setting *entry, const Device *device, const char *name) {
    return !strcmp(entry->name, name) && (entry->device[0] == '*' || atoi(entry->device) == device->index);
}

static double get(const Device *device, const char *name, double usual) {
    for (int i = 0; i < setting_count; i++) if (is_for(&settings[i], device, name)) usual = settings[i].value;
    static double grown[64];
    for (int i = 0; i < ramp_count; i++)
        if (is_for(&ramps[i], device, name)) { usual += grown[i]; grown[i] += ramps[i].value; }
    return usual;
}

static Result check(const char *function, const Device *device) {
    for (int i = 0; i < delay_count; i++) if (!strcmp(delays[i].function, function)) usleep(delays[i].us);
    for (int i = 0; i < failure_count; i++) {
        Failure *entry = &failures[i];
        if (strcmp(entry->function, "*") && strcmp(entry->function, function)) continue;
        if (device && entry->device >= 0 && entry->device != device->index) continue;
        if (entry->seen++ >= entry->after) return entry->code;
    }
    return initialised || !strncmp(function, "nvmlInit", 8) || !strcmp(function, "nvmlErrorString") ? 0 : 1;
}

#define ENTER(device) do { \
    if (!(device)) { fprintf(stderr, "nvml_stub: %s got a null handle\n", __func__); abort(); } \
    Result code = check(__func__, device); \
    if (code) return code; \
} while (0)
#define NOT_FOR_SLICES(device) do { if ((device)->slice >= 0) return 3; } while (0)

Result nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    read_script();
    Result code = check(__func__, NULL);
    if (!code) initialised = 1;
    return code;
}
Result nvmlShutdown(void) {
    Result code = check(__func__, NULL);
    initialised = 0;
    const char *log = getenv("NVML_STUB_LOG");
    FILE *file = log ? fopen(log, "a") : NULL;
    if (file) { fputs("shutdown\n", file); fclose(file); }
    return code;
}
const char *nvmlErrorString(Result code) { return code == 3 ? "Not Supported" : code == 15 ? "GPU is lost" : "an error"; }
Result nvmlDeviceGetCount_v2(unsigned *count) {
    Result code = check(__func__, NULL);
    if (!code) *count = card_count;
    return code;
}
Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if ((int)index >= card_count) return 2;
    ENTER(&cards[index]);
    *device = &cards[index];
    return 0;
}
Result nvmlDeviceGetUUID(Device *device, char *text, unsigned length) {
    ENTER(device);
    snprintf(text, length, "%s", device->uuid);
    if (get(device, "bad_uuid", 0)) { text[0] = (char)0xff; }
    return 0;
}
Result nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    ENTER(device);
    if (!get(device, "has_mig", slice_count[device->index] > 0)) return 3;
    *current = *pending = slice_count[device->index] > 0;
    return 0;
}
Result nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) { ENTER(device); *count = 7; return 0; }
Result nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **slice) {
    ENTER(device);
    if ((int)index >= slice_count[device->index]) return 6;
    *slice = &slices[device->index][index];
    return 0;
}
Result nvmlDeviceGetGpuInstanceId(Device *device, unsigned *id) { ENTER(device); *id = device->slice + 1; return 0; }
Result nvmlDeviceGetClockInfo(Device *device, int kind, unsigned *mhz) {
    ENTER(device);
    NOT_FOR_SLICES(device);
    *mhz = kind == 1 ? get(device, "sm_clock", 1755) : get(device, "memory_clock", 2619);
    return 0;
}
Result nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
    ENTER(device);
    NOT_FOR_SLICES(device);
    *milliwatts = get(device, "average_power", 300000);
    return 0;
}
Result nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *millijoules) {
    ENTER(device);
    NOT_FOR_SLICES(device);
    double value = get(device, "energy", 1000000);
    *millijoules = value < 1.8e19 ? (unsigned long long)value : ~0ull;
    return 0;
}
Result nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *celsius) {
    (void)sensor;
    ENTER(device);
    *celsius = get(device, "temperature", 61);
    return 0;
}
typedef struct { unsigned gpu, memory; } Utilization;
Result nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    ENTER(device);
    if (slice_count[device->index]) return 3; /* neither slices nor cards that are cut up tell */
    rates->gpu = get(device, "utilization", 41);
    rates->memory = 0;
    return 0;
}
typedef struct { unsigned long long total, free, used; } Memory;
Result nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    ENTER(device);
    memory->total = get(device, "memory_total", 80e9);
    memory->used = get(device, "memory_used", 5e9) + 5e8;
    memory->free = memory->total - memory->used;
    return 0;
}
Result nvmlDeviceGetPcieThroughput(Device *device, int counter, unsigned *kilobytes) {
    ENTER(device);
    *kilobytes = counter == 0 ? get(device, "pcie_tx", 1000) : get(device, "pcie_rx", 2000);
    return 0;
}
Result nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *bits) {
    ENTER(device);
    *bits = get(device, "throttle", 4);
    return 0;
}

#ifndef OLD_DRIVER
Result nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *bits) {
    ENTER(device);
    *bits = get(device, "throttle", 4);
    return 0;
}
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
Result nvmlDeviceGetMemoryInfo_v2(Device *device, Memory2 *memory) {
    ENTER(device);
    if (memory->version != 0x02000028) return 25;
    memory->total = get(device, "memory_total", 80e9);
    memory->reserved = 5e8;
    memory->used = get(device, "memory_used", 5e9);
    memory->free = memory->total - memory->used - memory->reserved;
    return 0;
}
typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    int type;
    Result result;
    union { double d; unsigned u; unsigned long long ull; } value;
} FieldValue;
Result nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    ENTER(device);
    NOT_FOR_SLICES(device);
    for (int i = 0; i < count; i++) {
        double watts = get(device, "power", 310500);
        values[i].result = values[i].field == 186 && watts >= 0 ? 0 : 3;
        values[i].type = 1;
        values[i].value.u = watts;
    }
    return 0;
}

typedef struct { Device *device; int instance; } Sample;
typedef struct { unsigned id; Result result; double value; void *info[3]; } Metric;
typedef struct { unsigned version, count; Sample *older, *newer; Metric metrics[333]; } Metrics;
typedef struct { unsigned version, is_supported; } Support;
Result nvmlGpmQueryDeviceSupport(Device *device, Support *support) {
    ENTER(device);
    support->is_supported = get(device, "gpm", 0) != 0;
    return 0;
}
Result nvmlGpmSampleAlloc(Sample **sample) { *sample = calloc(1, sizeof **sample); return 0; }
Result nvmlGpmSampleFree(Sample *sample) { free(sample); return 0; }
Result nvmlGpmSampleGet(Device *device, Sample *sample) {
    ENTER(device);
    if (slice_count[device->index]) return 3;
    *sample = (Sample){device, 0};
    return 0;
}
Result nvmlGpmMigSampleGet(Device *device, unsigned instance, Sample *sample) {
    ENTER(device);
    *sample = (Sample){device, instance};
    return 0;
}
Result nvmlGpmMetricsGet(Metrics *asked) {
    ENTER(asked->newer->device);
    for (unsigned i = 0; i < asked->count; i++) {
        Metric *metric = &asked->metrics[i];
        char name[16];
        snprintf(name, sizeof name, "gpm%u", metric->id);
        metric->value = get(asked->newer->device, name, 10.0 * asked->newer->instance + metric->id);
        metric->result = metric->value < 0 ? 3 : 0;
    }
    return 0;
}
#endif
