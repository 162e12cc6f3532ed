/* A tool for NVTX's injection interface: writes what a process announces to the file named by NVTX_LISTENER_LOG, a line
 * each, with tabs between:
 *
 *     push  DOMAIN  CATEGORY  NAME  registered|plain  PAYLOAD
 *     pop   DOMAIN
 *
 * PAYLOAD: FIELD=VALUE with semicolons between. Layouts and numbers are those of NVTX 3's public headers.
 */

#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char *name; char *categories[64]; } Domain;
typedef struct { char *text; } String;

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, payload_count;
    uint64_t payload;
    int32_t message_type;
    const void *message;
} Attributes;

typedef struct { uint64_t schema; size_t size; const char *bytes; } PayloadData;

typedef struct {
    uint64_t flags, type;
    const char *name, *description;
    uint64_t detail, offset;
    const void *semantics, *reserved;
} SchemaEntry;

typedef struct {
    uint64_t mask;
    const char *name;
    uint64_t type, flags;
    const SchemaEntry *entries;
    size_t count, static_size, alignment;
    uint64_t id;
} SchemaAttributes;

typedef struct { size_t segment, slots; intptr_t *functions; } Segment;
typedef struct {
    uint16_t version, size, module, compat;
    size_t segment_count;
    Segment *segments;
    void *get_export;
    const void *info;
} ExtensionModule;

enum { CALLBACKS = 1, CORE2 = 5, PAYLOAD_MODULE = 2 };
enum { PUSH = 4, POP = 5, NAME_CATEGORY = 8, REGISTER_STRING = 10, CREATE_DOMAIN = 12 };
enum { SCHEMA_REGISTER = 0, DOMAIN_IS_ENABLED = 7 };
enum { TYPE_INT64 = 17, TYPE_BYTE = 32, TYPE_FLOAT64 = 44, MESSAGE_REGISTERED = 3 };
#define PAYLOAD_EXTENDED ((int32_t)0xDFBD0009)
#define FIRST_SCHEMA ((uint64_t)1 << 32)

static FILE *out;
static SchemaAttributes schemas[256];
static uint64_t schema_count;

static char *copied(const char *text) { return strdup(text ? text : ""); }

static Domain *create_domain(const char *name) {
    Domain *domain = calloc(1, sizeof *domain);
    domain->name = copied(name);
    return domain;
}

static String *register_string(Domain *domain, const char *text) {
    String *string = malloc(sizeof *string);
    (void)domain;
    string->text = copied(text);
    return string;
}

static void name_category(Domain *domain, uint32_t number, const char *name) {
    if (domain && number < 64) domain->categories[number] = copied(name);
}

static uint64_t register_schema(Domain *domain, const SchemaAttributes *given) {
    SchemaAttributes *kept = &schemas[schema_count];
    SchemaEntry *entries = malloc(given->count * sizeof *entries);
    (void)domain;
    memcpy(entries, given->entries, given->count * sizeof *entries);
    for (size_t i = 0; i < given->count; i++) entries[i].name = copied(entries[i].name);
    kept->entries = entries;
    kept->count = given->count;
    return FIRST_SCHEMA + schema_count++;
}

static uint8_t is_enabled(Domain *domain) { (void)domain; return 1; }

static void write_value(uint64_t type, uint64_t detail, const char *bytes) {
    if (type >= FIRST_SCHEMA && type - FIRST_SCHEMA < schema_count) {
        const SchemaAttributes *schema = &schemas[type - FIRST_SCHEMA];
        for (size_t i = 0; i < schema->count; i++) {
            const SchemaEntry *entry = &schema->entries[i];
            int has_name = entry->type >= FIRST_SCHEMA || schema->count > 1;
            if (has_name) fprintf(out, "%s%s=", i ? ";" : "", entry->name);
            write_value(entry->type, entry->detail, bytes + entry->offset);
        }
    } else if (type == TYPE_INT64) {
        int64_t value;
        memcpy(&value, bytes, sizeof value);
        fprintf(out, "%" PRId64, value);
    } else if (type == TYPE_FLOAT64) {
        double value;
        memcpy(&value, bytes, sizeof value);
        fprintf(out, "%.17g", value);
    } else if (type == TYPE_BYTE) {
        fprintf(out, "%.*s", (int)detail, bytes);
    } else {
        fprintf(out, "?%" PRIu64, type);
    }
}

static int push(Domain *domain, const Attributes *given) {
    const char *category = domain && given->category < 64 ? domain->categories[given->category] : NULL;
    int registered = given->message_type == MESSAGE_REGISTERED;
    const char *name = registered ? ((const String *)given->message)->text : (const char *)given->message;
    fprintf(out, "push\t%s\t%s\t%s\t%s\t", domain ? domain->name : "", category ? category : "", name ? name : "",
            registered ? "registered" : "plain");
    if (given->payload_type == PAYLOAD_EXTENDED) {
        const PayloadData *data = (const PayloadData *)(uintptr_t)given->payload;
        for (int32_t i = 0; i < given->payload_count; i++) write_value(data[i].schema, 0, data[i].bytes);
    }
    fprintf(out, "\n");
    return 0;
}

static int pop(Domain *domain) {
    fprintf(out, "pop\t%s\n", domain ? domain->name : "");
    return 0;
}

typedef void (*Function)(void);
typedef struct { size_t size; int (*table_of)(int module, Function ***table, unsigned *size); } Callbacks;

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const Callbacks *callbacks = export_table(CALLBACKS);
    Function **table = NULL;
    unsigned size = 0;
    const char *path = getenv("NVTX_LISTENER_LOG");
    out = path ? fopen(path, "a") : NULL;
    if (!out || !callbacks || !callbacks->table_of(CORE2, &table, &size) || size <= CREATE_DOMAIN) return 0;
    setvbuf(out, NULL, _IOLBF, 0);
    *table[PUSH] = (Function)push;
    *table[POP] = (Function)pop;
    *table[NAME_CATEGORY] = (Function)name_category;
    *table[REGISTER_STRING] = (Function)register_string;
    *table[CREATE_DOMAIN] = (Function)create_domain;
    return 1;
}

int InitializeInjectionNvtxExtension(ExtensionModule *module) {
    if (module->module != PAYLOAD_MODULE || !module->segment_count) return 0;
    if (module->segments[0].slots > SCHEMA_REGISTER) module->segments[0].functions[SCHEMA_REGISTER] = (intptr_t)register_schema;
    if (module->segments[0].slots > DOMAIN_IS_ENABLED) module->segments[0].functions[DOMAIN_IS_ENABLED] = (intptr_t)is_enabled;
    return 1;
}
